"""What crosses rooms: real processes, real sockets, official clients."""
