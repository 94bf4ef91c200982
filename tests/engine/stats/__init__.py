"""Tests of engine/stats/."""
