"""The conversion of Gemini's requests into the chat that the model reads."""
