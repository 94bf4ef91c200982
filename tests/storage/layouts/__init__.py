"""Tests of storage/layouts/."""
