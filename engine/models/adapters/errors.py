"""The error for an adapter that is not served. Its message is for the user who loads it."""

from __future__ import annotations


class AdapterRefused(Exception):
    """An error: the adapter is absent, made for another model, or of a kind that is not served."""
