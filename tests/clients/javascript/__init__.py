"""Clients in JavaScript used with a running gateway."""
