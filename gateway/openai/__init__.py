"""The OpenAI dialect: its wire format in, its wire format and errors out."""
