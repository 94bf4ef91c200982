"""Tests of gateway.state."""
