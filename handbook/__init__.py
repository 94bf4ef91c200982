"""The embedded demo model: its training text, its training, its evaluation and its weights."""
