"""Engines, gateways and deployments that tests of several rooms start."""
