"""Tests of gateway/prefixes/."""
