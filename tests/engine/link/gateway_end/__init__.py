"""Tests of engine/link/gateway_end/."""
