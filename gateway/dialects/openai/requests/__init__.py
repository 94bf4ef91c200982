"""The requests of OpenAI's dialect: their Structs, and how they become generation requests."""
