"""Tests of cli/operating/tenancy/."""
