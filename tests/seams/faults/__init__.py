"""Tests of whole servers in which processes, disks or networks fail."""
