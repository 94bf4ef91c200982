"""The costs and gains of drafts: of random tokens, and of texts from published packages."""
