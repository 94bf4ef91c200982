"""Tests of gateway/routing/known/."""
