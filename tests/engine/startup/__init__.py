"""Tests of engine/startup/."""
