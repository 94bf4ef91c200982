"""Tests of the repository itself: docstrings, imports, pages, packages, deployment."""
