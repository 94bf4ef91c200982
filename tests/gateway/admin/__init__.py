"""Tests of gateway.admin."""
