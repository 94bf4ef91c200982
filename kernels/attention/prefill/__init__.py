"""Prefill attention: kernels for rows of many new tokens, with a form of its own for Hopper."""
