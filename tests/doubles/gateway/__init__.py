"""Tests of doubles/gateway/."""
