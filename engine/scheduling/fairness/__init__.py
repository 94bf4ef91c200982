"""Fairness: the queue of each flow, their order, and the price of their work."""
