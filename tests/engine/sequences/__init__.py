"""Tests of engine/sequences/."""
