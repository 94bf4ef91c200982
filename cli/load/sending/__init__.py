"""Sends requests, one after the other or when they arrive, and keeps how each went."""
