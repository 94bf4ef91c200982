"""Tests of engine/link/."""
