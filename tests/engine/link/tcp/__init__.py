"""Tests of engine/link/tcp/."""
