"""The routes that generate nothing, before a fake engine."""
