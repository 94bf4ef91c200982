"""Models that no checkpoint has: unlike layers, odd parts, another format of weights."""
