"""The costs of exchanges between ranks, and of blocks fetched between engines."""
