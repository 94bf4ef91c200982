"""What a link over TCP has beside one of a Unix socket: a key at both ends, and bounds."""
