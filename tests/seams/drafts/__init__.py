"""Tests that answers with drafts equal answers without drafts."""
