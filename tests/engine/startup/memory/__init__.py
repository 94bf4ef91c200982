"""Tests of engine/startup/memory/."""
