"""The description of a GGUF file by the JSON files that Hugging Face's models have."""
