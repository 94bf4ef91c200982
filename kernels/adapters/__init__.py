"""The low-rank products of adapters, beside the model's products."""
