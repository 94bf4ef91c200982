"""Tests of gateway/overview/."""
