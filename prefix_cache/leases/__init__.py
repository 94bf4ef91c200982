"""Leases of running sequences, the loads that they wait for, and retained prefixes."""
