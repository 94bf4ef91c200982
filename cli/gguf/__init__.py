"""The description of a GGUF file as Hugging Face's models are described."""
