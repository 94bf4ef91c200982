"""Processes, files and file systems for tests of the disk tier."""
