"""Conversations of several turns through gateway and engine."""
