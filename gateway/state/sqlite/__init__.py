"""The store of one machine: SQLite files, their faults, and records in tables."""
