"""Comparison of `ratoon bench` with other load generators on one server."""
