"""Chats with tools, reasoning and schemas, before a model that writes Hermes calls."""
