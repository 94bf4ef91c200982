"""Tests of gateway/state/redis/."""
