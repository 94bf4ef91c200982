"""The LoRA adapters of a model: reading and checking files, and computing products."""
