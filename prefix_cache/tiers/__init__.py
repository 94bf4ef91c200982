"""The slots of the device, host and disk tiers, and the copies of blocks between tiers.

Knows: how room is made, and what owners are charged. Does not know: who needs room (`leases`).
"""
