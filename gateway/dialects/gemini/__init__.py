"""Gemini's API: `/v1beta/models/{model}:generateContent`, its stream, and cached contents."""
