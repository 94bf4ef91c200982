"""Tests of gateway/http/."""
