"""Engines on several machines: started, watched and registered, so that gateways find them.

Ray decides on which machine an engine runs and starts it again elsewhere; nothing that a request
needs goes through it.
"""
