"""Attention over paged KV: prefill, decode, shared prefixes, and what writes and copies KV."""
