"""The additions of a link over TCP: a key at both ends, and bounds."""
