"""The answers of whole models, compared with those of transformers."""
