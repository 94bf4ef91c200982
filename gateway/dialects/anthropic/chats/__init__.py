"""The conversion of a Messages request into the chat that the model reads."""
