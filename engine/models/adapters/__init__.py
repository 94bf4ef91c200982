"""LoRA adapters of a model: their files, their checks, and their matrices beside the model's."""
