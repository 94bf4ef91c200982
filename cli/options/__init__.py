"""All flags, each defined once, with its variable and help."""
