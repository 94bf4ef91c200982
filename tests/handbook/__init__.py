"""Tests of handbook."""
