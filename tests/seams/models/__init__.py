"""Architectures, formats, adapters and modules through a whole engine."""
