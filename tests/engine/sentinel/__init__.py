"""Tests of engine/sentinel/."""
