"""The slots of the device, host and disk tiers, and the copies of blocks between tiers.

It makes room and charges owners.
"""
