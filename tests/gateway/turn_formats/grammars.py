"""llguidance's decision on a grammar, over a tokenizer of single bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.grammars.prepared import prepared
from engine.link.messages import Grammar

_EOS = "<eos>"


class Bytes:
    """A tokenizer of bytes and special tokens, and a check of texts against grammars."""

    def __init__(self, llguidance: ModuleType, special_tokens: Sequence[str] = ()) -> None:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self._tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens([_EOS, *special_tokens])
        self._matcher = llguidance.LLMatcher
        self._compiled: dict[str, Any] = {}
        self._vocabulary = llguidance.LLTokenizer(
            self._tokenizer.to_str(), eos_token=self._tokenizer.token_to_id(_EOS)
        )
        self.special_tokens: Mapping[str, int] = {
            token: int(self._tokenizer.token_to_id(token) or 0) for token in special_tokens
        }

    def error(self, grammar: str) -> str:
        """Return the reason why llguidance refuses the grammar, or ""."""
        return str(self._matcher.validate_grammar(_prepared(grammar), self._vocabulary))

    def accepts(self, grammar: str, written: str) -> bool:
        """Return whether the grammar accepts `written` as a whole turn."""
        if grammar not in self._compiled:
            self._compiled[grammar] = self._matcher(self._vocabulary, _prepared(grammar))
        matcher = self._compiled[grammar].deep_copy()
        assert not matcher.is_error(), matcher.get_error()
        ids = self._tokenizer.encode(written).ids
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def _prepared(lark: str) -> str:
    """Prepare a grammar for llguidance as the engine does."""
    return prepared(Grammar("lark", lark))
