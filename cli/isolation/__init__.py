"""Tests a running server: can tenants learn, also by timing, what others asked?"""
