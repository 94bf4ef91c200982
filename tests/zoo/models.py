"""Runnable models of a family: with random weights, or parrots.

A parrot answers with given texts to any prompt. Each piece of a text is a token of its own, and
each token's row of the output table points to the next token. So tests over HTTP show how a whole
server handles a model's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file

from gateway.prompts.tokens.token_bytes import byte_alphabet
from tests.zoo.family import Family

_PIECE = 3  # number of bytes in a piece, so few that a control token's text is split across tokens
# logits of the next token, of the first tokens of texts, and of all other tokens
_SURE, _FIRST, _OTHER = 20.0, 2.0, 1.0
_HEAD = 64  # dimensions of an attention head


def write_runnable(family: Family, directory: Path, *, real: bool = False) -> Path:
    """Write a model of two small layers in Llama's architecture, for `--load-format dummy`."""
    family.write(directory, real=real)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    _write_config(family, directory, **sizes, **heads)
    return directory


def write_parrot(family: Family, directory: Path, texts: Sequence[str]) -> tuple[int, ...]:
    """Write a model that answers with the first of `texts`; return the first token of each text.

    A `logit_bias` for that token selects another text. Raises ValueError if a control token occurs
    twice in all texts.
    """
    chains = _cut(texts, [mark.text for mark in family.marks()])
    pieces = [piece for chain in chains for piece in chain if piece[0] != "<mark>"]
    family.write(directory, pieces=tuple(spelled for _, spelled in pieces))
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = [[_id_of(inner, spelled) for _, spelled in chain] for chain in chains]
    end = _id_of(inner, family.ends[0])
    follows = _successors([[*chain, end] for chain in ids])
    starts = tuple(chain[0] for chain in ids)
    save_file(_weights(inner.get_vocab_size(), follows, starts), directory / "model.safetensors")
    width = _width(inner.get_vocab_size())
    heads = {"num_attention_heads": width // _HEAD, "num_key_value_heads": width // _HEAD}
    sizes = {"hidden_size": width, "intermediate_size": _HEAD, "num_hidden_layers": 1}
    _write_config(family, directory, **sizes, **heads, tie_word_embeddings=False)
    return starts


def _cut(texts: Sequence[str], marks: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Split each text into pairs: ("<mark>", its text), or ("", a piece spelled in byte
    letters).
    """
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    found = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")
    taken = set(letters.values())
    chains = []
    for text in texts:
        chain: list[tuple[str, str]] = []
        at = 0
        for mark in [*found.finditer(text), None]:
            between = text[at : mark.start() if mark else None]
            spelled = "".join(letters[byte] for byte in between.encode())
            chain += [("", piece) for piece in _pieces(spelled, taken)]
            if mark is not None:
                chain.append(("<mark>", mark[0]))
                at = mark.end()
        chains.append(chain)
    return chains


def _pieces(spelled: str, taken: set[str]) -> list[str]:
    """Split `spelled` into pieces that are not yet in `taken`; add them to `taken`."""
    pieces: list[str] = []
    while spelled:
        size = _PIECE
        while spelled[:size] in taken and size < len(spelled):
            size += 1
        piece, spelled = spelled[:size], spelled[size:]
        while piece in taken and pieces:  # the last piece of a text
            taken.discard(pieces[-1])
            piece = pieces.pop() + piece
        if piece in taken:
            raise ValueError(f"the text {piece!r} comes twice")
        taken.add(piece)
        pieces.append(piece)
    return pieces


def _id_of(inner: tokenizers.Tokenizer, token: str) -> int:
    token_id = inner.token_to_id(token)
    assert token_id is not None
    return token_id


def _successors(chains: Sequence[Sequence[int]]) -> dict[int, int]:
    follows: dict[int, int] = {}
    for chain in chains:
        for here, there in pairwise(chain):
            if follows.setdefault(here, there) != there:
                raise ValueError(f"token {here} comes twice")
    return follows


def _width(vocab_size: int) -> int:
    return -(-vocab_size // _HEAD) * _HEAD


def _weights(
    vocab_size: int, follows: dict[int, int], starts: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Make weights: unit vectors as embeddings, zeros in attention and MLP, the successors in the
    output table.
    """
    width = _width(vocab_size)
    head = torch.zeros(vocab_size, width)
    for token in range(vocab_size):
        if token in follows:
            head[follows[token], token] = _SURE
            continue
        for place, start in enumerate(starts):
            head[start, token] = _OTHER if place else _FIRST
    layer = "model.layers.0."
    square = {f"{layer}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"}
    up = {f"{layer}mlp.{name}_proj.weight": (_HEAD, width) for name in ("gate", "up")}
    shapes = {**square, **up, f"{layer}mlp.down_proj.weight": (width, _HEAD)}
    norms = (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm")
    return {
        # The norm before the output table turns the 1 of a unit vector into sqrt(width).
        "lm_head.weight": head * 10 / width**0.5,
        "model.embed_tokens.weight": torch.eye(vocab_size, width),
        **{name: torch.zeros(shape) for name, shape in shapes.items()},
        **{f"{norm}.weight": torch.ones(width) for norm in norms},
    }


def _write_config(family: Family, directory: Path, **sizes: Any) -> None:
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    ends = [inner.token_to_id(end) for end in family.ends]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": inner.get_vocab_size(),
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": [end for end in ends if end is not None],
        "torch_dtype": "float32",
        **sizes,
    }
    (directory / "config.json").write_text(json.dumps(config))
