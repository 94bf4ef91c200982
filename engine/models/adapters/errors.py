"""The error of an adapter that is not served; its message is for the user who loads it."""

from __future__ import annotations


class AdapterRefused(Exception):
    """An adapter that is absent, made for another model, or of a kind that is not served."""
