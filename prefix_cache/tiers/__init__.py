"""The slots of the device, the host and the disk, and the copies of blocks between them.

Knows: how room is made and what owners are charged. Does not know: who waits for it (`leases`).
"""
