"""A chat before it is rendered: messages, their parts, tools, and a template's variables."""
