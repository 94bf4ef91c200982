"""Chats with tools, reasoning and schemas, with a model that writes Hermes calls."""
