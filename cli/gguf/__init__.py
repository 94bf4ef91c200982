"""The JSON files of a Hugging Face model, made from the fields of a GGUF file."""
