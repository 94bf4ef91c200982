"""Doubles, clients and references for tests of the gateway."""
