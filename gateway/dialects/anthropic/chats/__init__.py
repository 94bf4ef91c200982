"""The conversion of a request's turns, tools and breakpoints into the chat that the model reads."""
