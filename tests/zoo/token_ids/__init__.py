"""The ids that published tokenizers give."""
