"""Tests of gateway/sharing/."""
