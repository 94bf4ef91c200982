"""Tests of a gateway with several engines."""
