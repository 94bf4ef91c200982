"""Ranks on other machines (nodes): what goes through a ring on one machine goes over TCP to them.

A rank knows nothing of it: each has a ring and a socket of its own machine.
"""
