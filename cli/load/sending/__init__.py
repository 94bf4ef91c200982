"""The sending of requests, one after the other or as they arrive, and their outcomes."""
