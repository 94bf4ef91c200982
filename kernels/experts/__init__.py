"""Mixtures of experts: which experts compute a token, their products, and the sum of these."""
