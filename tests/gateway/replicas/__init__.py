"""The gateway before several engines."""
