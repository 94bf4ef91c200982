"""Tests of engine/rigs/."""
