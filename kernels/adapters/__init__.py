"""The low-rank products of LoRA adapters, which are added to the model's products."""
