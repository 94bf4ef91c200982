"""The conversion of a Responses request into the chat that the model reads."""
