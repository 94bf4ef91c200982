"""The scheduler, which chooses the sequences of each step."""
