"""Tests of engine/execution/."""
