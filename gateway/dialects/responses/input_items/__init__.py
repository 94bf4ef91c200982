"""Items of the input, and the tools that they call or declare."""
