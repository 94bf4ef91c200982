"""The routes that generate nothing, of whole servers and by their official clients."""
