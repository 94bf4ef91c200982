"""The engine's end of the link: its socket, the binding of sockets, and the waker of its thread."""
