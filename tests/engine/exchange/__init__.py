"""The exchange of blocks between engines: messages, sealed blocks, and fetches."""
