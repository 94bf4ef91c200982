"""Errors of kernels."""

from __future__ import annotations


class UnsupportedShape(Exception):
    """The geometry is outside what the kernels compute. Raised before anything is launched."""
