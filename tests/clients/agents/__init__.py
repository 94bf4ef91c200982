"""Coding agents used with a running gateway."""
