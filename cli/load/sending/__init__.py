"""The sending of requests, in closed or open loops, and their outcomes."""
