"""The gateway's end of the link: a connection to one engine, and the requests sent over it."""
