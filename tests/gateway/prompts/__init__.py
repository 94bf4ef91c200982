"""Tests of gateway/prompts/."""
