"""The formats in which each family of models writes reasoning, text and tool calls.

Knows text, JSON and llguidance's grammars. Does not know dialects, HTTP, token ids' meaning or
the engine.
"""
