"""Drafts: tokens that probably come next, to be verified several in one step."""
