"""Tests across rooms: real processes, real sockets, official clients."""
