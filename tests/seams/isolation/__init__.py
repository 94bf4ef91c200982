"""Isolation of tenants from each other, and the charges of each tenant."""
