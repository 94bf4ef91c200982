"""The store of one machine: SQLite's files, their faults, the records in tables."""
