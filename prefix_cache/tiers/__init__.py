"""The slots of the device, host and disk tiers, and the copies of blocks between tiers.

This package makes room and charges owners.

The package `leases` asks for room.
"""
