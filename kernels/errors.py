"""What a kernel refuses, as types.

KernelError
 `- UnsupportedShape   a model or batch geometry that no kernel here computes
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of everything this room raises on purpose."""


class UnsupportedShape(KernelError):
    """The geometry is outside what the kernels compute. Raised before anything is launched."""
