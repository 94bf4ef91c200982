"""Chats of a request: its turns, tools and breakpoints as the model is to read them."""
