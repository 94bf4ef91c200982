"""The attention over paged KV: prefill, decode, shared prefixes, writing and copying of KV."""
