"""What runs in the next step: the queue, fairness, sequences, and settling a finished step."""
