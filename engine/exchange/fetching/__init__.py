"""The fetching of KV blocks: the choice to fetch, and the thread that asks."""
