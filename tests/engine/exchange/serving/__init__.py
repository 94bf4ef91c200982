"""Tests of engine/exchange/serving/."""
