"""The fetching of KV blocks from other engines: the decision to fetch, and the fetching thread."""
