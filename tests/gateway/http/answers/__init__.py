"""Tests of gateway/http/answers/."""
