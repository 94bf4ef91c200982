"""Faults of files and file systems."""
