"""Isolation of tenants, and the charges of each."""
