"""Tests of gateway/routing/routers/."""
