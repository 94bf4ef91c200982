"""Limits in Redis, and in a gateway while Redis fails."""
