"""Answers in Gemini's shape, whole or as the chunks of a stream."""
