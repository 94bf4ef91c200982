"""Weights that stay in host memory."""
