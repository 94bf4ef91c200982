"""Engines on several machines: placed, watched, and registered for gateways to find.

Ray decides on which machine an engine runs and starts it again elsewhere; nothing that a request
needs goes through it.
"""
