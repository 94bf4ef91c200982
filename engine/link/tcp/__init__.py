"""The protection of a link over TCP: a key at both ends, and a limit on connections."""
