"""Tests of storage/disk/file/."""
