"""Tests of engine/models/layers/."""
