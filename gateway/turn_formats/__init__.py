"""The formats in which each family of models writes reasoning, text and tool calls.

This package imports nothing from the rest of the gateway.
"""
