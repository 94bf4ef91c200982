"""Tests of gateway/dialects/openai/."""
