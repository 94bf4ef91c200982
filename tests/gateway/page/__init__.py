"""Tests of gateway/page."""
