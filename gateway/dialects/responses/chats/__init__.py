"""Chats of a request: its items, tools and breakpoints as the model is to read them."""
