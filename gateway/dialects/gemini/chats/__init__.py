"""Chats of a request: its contents, tools and schemas as the model is to read them."""
