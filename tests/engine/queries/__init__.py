"""Tests of engine/queries/."""
