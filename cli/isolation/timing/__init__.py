"""The timing test of isolation: requests, trials, and how well times tell hits from misses."""
