"""From the engine's events to an answer: choices, text, stop strings, the order of answering."""
