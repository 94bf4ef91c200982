"""Tests of gateway/generation/."""
