"""The error of an adapter that is not served; its message is for whoever wanted to load it."""

from __future__ import annotations


class AdapterRefused(Exception):
    """An adapter that is not there, not of this model, or of a kind that is not served."""
