"""Errors of kernels."""

from __future__ import annotations


class UnsupportedShape(Exception):
    """A geometry that the kernels cannot compute. Raised before any launch."""
