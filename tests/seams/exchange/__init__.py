"""Blocks that go between two engines: bytes and tokens are those of computing."""
