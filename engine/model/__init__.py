"""One decoder described by its config: reading a Hugging Face directory and computing logits."""
