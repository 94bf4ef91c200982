"""Tenants and keys behind one protocol; embedded SQLite is its home on one machine."""
