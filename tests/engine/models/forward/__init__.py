"""Tests of engine/models/forward/."""
