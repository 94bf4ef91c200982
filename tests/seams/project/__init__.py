"""Tests of seams/project/."""
