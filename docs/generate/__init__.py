"""Pages of docs/reference, made from the code: `python -m docs.generate` writes them anew."""
