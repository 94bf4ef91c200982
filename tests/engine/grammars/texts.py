"""The texts that a grammar allows, according to the grammar library, after this project's
preparation and checks.
"""

from __future__ import annotations

from llguidance import LLMatcher

from engine.grammars.check import checked
from engine.grammars.limits import parser_limits
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar, GrammarKind


class Texts:
    """The texts that a grammar allows, over a vocabulary of single bytes."""

    def __init__(self, vocabulary: Vocabulary, kind: GrammarKind, text: str) -> None:
        """Prepare and compile the grammar; raise its error if it is refused."""
        found = checked(Grammar(kind, text))
        assert not found.error, found.error
        limits = parser_limits()
        self._matcher = LLMatcher(vocabulary.tokens, found.text, log_level=0, limits=limits)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def __contains__(self, text: str) -> bool:
        matcher, ids = self._matcher.deep_copy(), list(text.encode())
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def refusal(kind: GrammarKind, text: str) -> str:
    """Return the reason why the grammar is refused, or ""."""
    return checked(Grammar(kind, text)).error
