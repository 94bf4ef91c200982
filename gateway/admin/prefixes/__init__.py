"""The operator's routes for published prefixes, which are also exported and imported."""
