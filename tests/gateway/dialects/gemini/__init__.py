"""Tests of Gemini's dialect with its official client."""
