"""The routes that generate nothing, with whole servers and their official clients."""
