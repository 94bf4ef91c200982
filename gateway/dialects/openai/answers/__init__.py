"""The answers of OpenAI's dialect: their Structs, and how they are rendered from tokens."""
