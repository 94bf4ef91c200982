"""A test of a running server: can tenants learn, even by timing, others' prompts?"""
