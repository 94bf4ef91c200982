"""Doubles of the gateway, its clients and its neighbours."""
