"""Which of an owner's blocks goes first."""
