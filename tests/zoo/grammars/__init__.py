"""Grammars of answers, with published tokenizers and published grammars."""
