"""The attention over paged KV: prefill, decode, shared prefixes, and writes and copies of KV."""
