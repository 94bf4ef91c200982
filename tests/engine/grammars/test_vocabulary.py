"""Strings may contain plain tags, but control tokens only if the grammar names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.grammars.compilation import Compilation, compiled
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import read_vocabulary
from engine.link.messages import Grammar
from gateway.prompts.tokens.token_bytes import byte_alphabet

TABLE, THINK, MARK, EOS = 256, 257, 258, 259


def _model(directory: Path) -> Path:
    """Write a tokenizer like Gemma's.

    `<table>` is an added token but no control token; `<think>` is in the chat template.
    """
    vocabulary = byte_alphabet() | {"<table>": TABLE, "<think>": THINK}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    plain = ["<table>", "<think>", "<|mark|>"]
    inner.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    inner.add_special_tokens(["<|eos|>"])
    inner.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "<think>"}))
    return directory


def test_a_string_may_have_tags_of_text_and_no_marks(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(_model(tmp_path), 260, (EOS,))
    string = compiled(prepared(Grammar("regex", '"[^"]*"')), vocabulary)
    constraint = GrammarConstraint(Compilation(string))
    constraint.advance(ord('"'))
    bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
    allowed = set(np.flatnonzero(bits).tolist())
    assert TABLE in allowed
    assert ord("<") in allowed
    assert not {THINK, MARK, EOS} & allowed


def test_a_grammar_may_still_name_a_mark(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(_model(tmp_path), 260, (EOS,))
    lark = Grammar("lark", f'start: <[{THINK}]> "a" <[{TABLE}]>')
    constraint = GrammarConstraint(Compilation(compiled(prepared(lark), vocabulary)))
    for token in (THINK, ord("a"), TABLE):
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == [token]
        constraint.advance(token)
