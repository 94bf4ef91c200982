"""The routes that generate no tokens, with a fake engine."""
