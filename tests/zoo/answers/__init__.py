"""Answers of models beside those of transformers, and answers to recorded requests."""
