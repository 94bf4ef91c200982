"""The mixtures of experts: the choice of experts for a token, their GEMMs, and the sum."""
