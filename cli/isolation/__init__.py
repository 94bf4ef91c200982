"""A test of a running server: can tenants learn, also by timing, what others asked?"""
