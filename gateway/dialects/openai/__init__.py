"""The OpenAI dialect: its requests, its answers and its errors."""
