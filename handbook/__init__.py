"""The embedded demo model: its weights in `model`, and in `evaluation` how right they are."""
