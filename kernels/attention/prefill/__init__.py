"""The prefill attention: kernels for rows of many new tokens, with a separate kernel for Hopper."""
