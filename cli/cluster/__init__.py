"""Engines on several machines: placed, watched, and registered for gateways to find.

Ray decides on which machine an engine runs, and starts the engine again elsewhere if it ends. No
request or answer goes through Ray.
"""
