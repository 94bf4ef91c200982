"""The LoRA adapters of a model: files, checks, and their matrices beside the model's matrices."""
