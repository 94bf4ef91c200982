"""The prefill attention: a kernel for rows of several new tokens, and another one for Hopper."""
