"""Tests of engine/scheduling/."""
