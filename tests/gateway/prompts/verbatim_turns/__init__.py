"""Tests of turns that are put back as their own tokens."""
