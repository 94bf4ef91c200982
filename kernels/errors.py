"""What a kernel refuses, as types.

KernelError
 |- UnsupportedShape   a model or batch geometry that no kernel here computes
 `- LibraryRefused     a library that computes for a kernel answered with an error
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of everything this room raises on purpose."""


class UnsupportedShape(KernelError):
    """The geometry is outside what the kernels compute. Raised before anything is launched."""


class LibraryRefused(KernelError):
    """A library that computes for a kernel answered with an error."""
