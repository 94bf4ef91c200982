"""Tests across packages, with real processes, real sockets and official clients."""
