"""Pages of docs/reference, written from the code by `python -m docs.generate`."""
