"""Tests of gateway/http/protocol/."""
