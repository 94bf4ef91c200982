"""Drafts: tokens that probably come next; one step verifies several of them."""
