"""The mixtures of experts: choosing experts for a token, their GEMMs, and the sum."""
