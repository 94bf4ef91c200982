"""OpenRouter's dialect below `/api/v1`: OpenAI's routes, with OpenRouter's errors and models."""
