"""Tests of engine/link/engine_end/."""
