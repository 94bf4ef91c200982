"""The engine's end of the link: its socket, and how it is bound and woken."""
