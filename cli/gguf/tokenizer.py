"""tokenizer.json and tokenizer_config.json of a model, from the fields of its GGUF file.

tokenizer.ggml.model   gpt2: BPE over bytes; llama: BPE over characters, bytes where there are
                       none (SentencePiece)
tokenizer.ggml.pre     how a text is cut before gpt2's merges
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from engine.models.errors import BadConfig, UnsupportedModel
from engine.models.gguf.header import GgufHeader

_FIELD = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # types of tokens
_SPACE = "▁"  # as SentencePiece writes a blank

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The way in which a text is cut. `pattern` None: as GPT-2 cuts; `merges_whole`: whole words
    that are tokens need no merges."""

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    merges_whole: bool = False


_QWEN = _Cut(rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_SIGNS}[\r\n]*|{_BLANKS}", nfc=True)
_LLAMA3 = _Cut(rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}[\r\n]*|{_BLANKS}", merges_whole=True)
_TEKKEN = _Cut(rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SIGNS}[\r\n/]*|{_BLANKS}", merges_whole=True)
_O200K = _Cut(
    rf"{_CASED[0]}{_ENGLISH}?|{_CASED[1]}{_ENGLISH}?|\p{{N}}{{1,3}}|{_SIGNS}[\r\n/]*|{_BLANKS}",
    merges_whole=True,
)
_CUTS: Mapping[str, _Cut] = {
    "gpt-2": _Cut(),
    "smollm": _Cut(single_digits=True),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _TEKKEN,
    "gpt-4o": _O200K,
    "llama4": _O200K,
}


def read_tokenizer(header: GgufHeader) -> Tokenizer:
    """Return the tokenizer; raises BadConfig, UnsupportedModel."""
    model = header.fields.get(f"{_FIELD}model")
    if model == "gpt2":
        tokenizer = _of_bytes(header)
    elif model == "llama":
        tokenizer = _of_characters(header)
    else:
        raise UnsupportedModel(f"{_FIELD}model {model!r}: served are gpt2 and llama")
    tokens, kinds = _tokens(header), _kinds(header)
    for kind in (_CONTROL, _USER_DEFINED):
        marks = [text for text, one in zip(tokens, kinds, strict=True) if one == kind]
        added = [AddedToken(text, normalized=False, special=kind == _CONTROL) for text in marks]
        tokenizer.add_tokens(added)
    _add_ends(header, tokenizer)
    return tokenizer


def read_tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json; raises BadConfig."""
    tokens, config = _tokens(header), {}
    for name in ("bos", "eos", "unknown", "padding"):
        number = header.fields.get(f"{_FIELD}{name}_token_id")
        if isinstance(number, int) and number < len(tokens):
            config[f"{ {'unknown': 'unk', 'padding': 'pad'}.get(name, name) }_token"] = tokens[
                number
            ]
    templates = {
        name.removeprefix(f"{_TEMPLATE}."): text
        for name, text in header.fields.items()
        if name.startswith(f"{_TEMPLATE}.")
    }
    own = header.fields.get(_TEMPLATE)
    if templates and own is not None:
        named = {"default": own, **templates}
        return config | {"chat_template": [{"name": n, "template": t} for n, t in named.items()]}
    return config if own is None else config | {"chat_template": own}


def _of_bytes(header: GgufHeader) -> Tokenizer:
    name = header.fields.get(f"{_FIELD}pre", "gpt-2")
    if name not in _CUTS:
        raise UnsupportedModel(f"{_FIELD}pre {name!r}: served are {', '.join(sorted(_CUTS))}")
    cut = _CUTS[name]
    vocabulary = _vocabulary(header)
    merges = _given_merges(header, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut.merges_whole))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if cut.single_digits else []
    words = [] if cut.pattern is None else [pre_tokenizers.Split(Regex(cut.pattern), "isolated")]
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, *words, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _of_characters(header: GgufHeader) -> Tokenizer:
    vocabulary, kinds, tokens = _vocabulary(header), _kinds(header), _tokens(header)
    unknown = [text for text, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN]
    model = models.BPE(
        vocabulary,
        _given_merges(header, vocabulary) or _scored_merges(header, vocabulary),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    blanks = normalizers.Replace(" ", _SPACE)
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.fields.get(f"{_FIELD}add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), blanks])
        tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = blanks
        tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _given_merges(header: GgufHeader, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in header.fields.get(f"{_FIELD}merges", ()):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise BadConfig(f"{_FIELD}merges has {merge!r}, of which a part is no token")
        merges.append((left, right))
    return merges


def _scored_merges(header: GgufHeader, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece's scores stand for, the best score first."""
    scores = header.fields.get(f"{_FIELD}scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary):
        raise BadConfig(f"the GGUF file has neither {_FIELD}merges nor {_FIELD}scores")
    found = [
        (-scores[number], vocabulary[text[:at]], vocabulary[text[at:]], text[:at], text[at:])
        for text, number in vocabulary.items()
        for at in range(1, len(text))
        if text[:at] in vocabulary and text[at:] in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _add_ends(header: GgufHeader, tokenizer: Tokenizer) -> None:
    """Let texts begin with the token that begins a text, and end with its kin, where they do."""
    tokens, is_spm = _tokens(header), header.fields.get(f"{_FIELD}model") == "llama"
    parts, special = ["$A"], []
    for name, default in (("bos", is_spm), ("eos", False)):
        number = header.fields.get(f"{_FIELD}{name}_token_id")
        if header.fields.get(f"{_FIELD}add_{name}_token", default) and isinstance(number, int):
            special.append((tokens[number], number))
            parts = [tokens[number], *parts] if name == "bos" else [*parts, tokens[number]]
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=parts, special_tokens=special
        )


def _vocabulary(header: GgufHeader) -> dict[str, int]:
    return {text: number for number, text in enumerate(_tokens(header))}


def _tokens(header: GgufHeader) -> list[str]:
    tokens = header.fields.get(f"{_FIELD}tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BadConfig(f"the GGUF file has no {_FIELD}tokens")
    return tokens


def _kinds(header: GgufHeader) -> list[int]:
    tokens = _tokens(header)
    kinds = header.fields.get(f"{_FIELD}token_type", [1] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise BadConfig(f"{_FIELD}token_type has not one number for each token")
    return kinds
