"""The conversion of a request's items, tools and breakpoints into the chat that the model reads."""
