"""Tests of seams/faults/."""
