"""Tests of gateway/auth/."""
