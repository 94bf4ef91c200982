"""The queue of each flow of requests, the order of the queues, and the price of work."""
