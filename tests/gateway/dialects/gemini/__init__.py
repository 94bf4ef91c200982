"""Gemini's dialect, by its official client."""
