"""The error of an adapter that is not served, with a message for the user who loads it."""

from __future__ import annotations


class AdapterRefused(Exception):
    """An error: an adapter is absent, made for another model, or of a kind that is not served."""
