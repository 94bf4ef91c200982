"""All flags, each defined once, with its environment variable and help."""
