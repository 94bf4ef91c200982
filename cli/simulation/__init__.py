"""Replays request traces through the prefix cache itself, without a byte of KV."""
