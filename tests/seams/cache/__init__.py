"""The cache's contents and reports: hits, tiers, restarts, marks."""
