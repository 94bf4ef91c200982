"""The choice of sequences for the next step: queue, fairness, sequences, settling."""
