"""Doubles of the gateway, of its clients, and of the servers around it."""
