"""A test of a running server: can a tenant learn, even by timing, another tenant's prompts?"""
