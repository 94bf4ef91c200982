"""The errors of kernels."""

from __future__ import annotations


class UnsupportedShape(Exception):
    """An error: the kernels cannot compute a geometry. Raised before any launch."""
