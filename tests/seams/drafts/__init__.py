"""Drafts: answers with and without them are equal."""
