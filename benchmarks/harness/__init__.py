"""lm-evaluation-harness against a server, beside the same model in `transformers`."""
