"""Tests of seams/support/."""
