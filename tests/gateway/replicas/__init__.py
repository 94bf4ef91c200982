"""Tests of the gateway before several engines."""
