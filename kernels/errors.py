"""The errors of kernels."""

from __future__ import annotations


class UnsupportedShape(Exception):
    """An error: the kernels do not support a combination of sizes. Raised before any launch."""
