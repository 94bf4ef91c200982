"""The scheduling: the choice of each step's sequences, and the effects of a finished step."""
