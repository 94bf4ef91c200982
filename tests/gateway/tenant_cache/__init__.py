"""Tests of gateway/tenant_cache/."""
