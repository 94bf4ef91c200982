"""The choice of what runs in the next step: queue, fairness, sequences, settling."""
