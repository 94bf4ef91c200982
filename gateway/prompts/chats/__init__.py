"""A chat before it is rendered: messages, their parts, tools, and what a template is given."""
