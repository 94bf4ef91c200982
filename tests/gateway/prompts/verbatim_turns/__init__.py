"""Tests of generated turns that a later prompt repeats token for token."""
