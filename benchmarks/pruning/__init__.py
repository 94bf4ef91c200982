"""Answers from a part of a document's KV, as published pruning methods choose the part.

Knows: transformers' Llamas, documents with questions. Does not know: the engine or its cache.
"""
