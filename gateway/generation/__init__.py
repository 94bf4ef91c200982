"""The conversion of the engine's events to an answer: its choices, text and stop strings."""
