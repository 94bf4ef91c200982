"""The costs and gains of drafts, by chance or from texts that packages publish."""
