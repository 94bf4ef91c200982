"""The whole engine with its cache: random worlds, spies, and failures of every call."""
