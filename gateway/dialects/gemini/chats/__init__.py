"""The conversion of a request's contents, tools and schemas into the chat that the model reads."""
