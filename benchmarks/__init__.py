"""Measurements; every figure in the docs names the command here that makes it."""
