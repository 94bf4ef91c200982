"""Frameworks that people use, against the running gateway; skipped where one is not installed."""
