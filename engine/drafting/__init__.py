"""Drafts: tokens that probably come next, of which one step verifies several."""
