"""The drafts: guesses of a sequence's next tokens. One step verifies several drafted tokens."""
