"""The low-rank products of LoRA adapters, beside the model's products."""
