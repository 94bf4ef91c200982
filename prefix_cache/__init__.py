"""Decides what stays, what goes and what is shared. No torch, no I/O, no clock of its own."""
