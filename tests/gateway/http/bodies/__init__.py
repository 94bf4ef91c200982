"""Tests of gateway/http/bodies/."""
