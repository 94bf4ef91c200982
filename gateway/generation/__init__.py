"""The conversion of the engine's events to an answer: choices, text, stop strings, their order."""
