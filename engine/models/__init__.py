"""A decoder described by its config: reads a Hugging Face directory and computes logits."""
