"""Routes that generate no tokens, tested with whole servers and official clients."""
