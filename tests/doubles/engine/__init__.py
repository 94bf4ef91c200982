"""Tests of doubles/engine/."""
