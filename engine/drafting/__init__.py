"""The drafts: tokens that probably come next, of which a step verifies several."""
