"""Files of models and adapters, made for tests."""
