"""Tests of gateway/support/."""
