"""Tests of engine/exchange/fetching/."""
