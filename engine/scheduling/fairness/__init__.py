"""The fairness between flows of requests: a queue for each, their order, and prices of work."""
