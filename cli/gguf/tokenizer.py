"""tokenizer.json and tokenizer_config.json of a model, from the fields of its GGUF file.

tokenizer.ggml.model   gpt2: BPE over bytes; llama: BPE over characters, and over bytes of
                       characters that are no tokens (SentencePiece)
tokenizer.ggml.pre     how a text is split before gpt2's merges
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta
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
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "▁"  # SentencePiece's character for a space
# maximum number of characters of a token; published vocabularies have up to some 130
MAX_TOKEN = 1024
_Id = Annotated[int, Meta(ge=0)]

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SIGNS = r" ?[^\s\p{L}\p{N}]+"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)


class _Fields(msgspec.Struct, rename=lambda name: f"{_FIELD}{name}"):
    """The fields of the tokenizer that are needed here, without the prefix `tokenizer.ggml.`."""

    tokens: list[Annotated[str, Meta(max_length=MAX_TOKEN)]]
    token_type: list[int] = []
    merges: list[str] = []
    scores: list[float] = []
    model: str | None = None
    pre: str = "gpt-2"
    add_space_prefix: bool = True
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    bos_token_id: _Id | None = None
    eos_token_id: _Id | None = None
    unknown_token_id: _Id | None = None
    padding_token_id: _Id | None = None

    def token(self, number: int | None) -> str | None:
        return None if number is None or number >= len(self.tokens) else self.tokens[number]

    def of_kind(self, kind: int) -> list[str]:
        return [
            text for text, one in zip(self.tokens, self.token_type, strict=False) if one == kind
        ]


@dataclass(frozen=True, slots=True)
class _Cut:
    """The pre-tokenizer: rules that split a text before merges.

    None as `pattern` means GPT-2's pattern. With `merges_whole`, a word that is a token needs no
    merges.
    """

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
    """Return the tokenizer. Raises BadConfig, UnsupportedModel."""
    fields = _read(header)
    if fields.model == "gpt2":
        tokenizer = _of_bytes(fields)
    elif fields.model == "llama":
        tokenizer = _of_characters(fields)
    else:
        raise UnsupportedModel(f"{_FIELD}model {fields.model!r}: served are gpt2 and llama")
    for kind in (_CONTROL, _USER_DEFINED):
        added = [
            AddedToken(text, normalized=False, special=kind == _CONTROL)
            for text in fields.of_kind(kind)
        ]
        tokenizer.add_tokens(added)
    _add_ends(fields, tokenizer)
    return tokenizer


def read_tokenizer_config(header: GgufHeader) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json. Raises BadConfig."""
    fields = _read(header)
    named = {
        "bos_token": fields.token(fields.bos_token_id),
        "eos_token": fields.token(fields.eos_token_id),
        "unk_token": fields.token(fields.unknown_token_id),
        "pad_token": fields.token(fields.padding_token_id),
    }
    config: dict[str, Any] = {name: text for name, text in named.items() if text is not None}
    own = header.fields.get(_TEMPLATE)
    others = {
        name.removeprefix(f"{_TEMPLATE}."): text
        for name, text in header.fields.items()
        if name.startswith(f"{_TEMPLATE}.")
    }
    if own is not None:
        config["chat_template"] = own
    if own is not None and others:
        templates = {"default": own, **others}
        config["chat_template"] = [{"name": n, "template": t} for n, t in templates.items()]
    return config


def _read(header: GgufHeader) -> _Fields:
    try:
        fields = msgspec.convert(header.fields, _Fields)
    except msgspec.ValidationError as error:
        raise BadConfig(f"the tokenizer of the GGUF file: {error}") from error
    if fields.token_type and len(fields.token_type) != len(fields.tokens):
        raise BadConfig(f"{_FIELD}token_type has not one number for each token")
    return fields


def _of_bytes(fields: _Fields) -> Tokenizer:
    if fields.pre not in _CUTS:
        raise UnsupportedModel(f"{_FIELD}pre {fields.pre!r}: served are {', '.join(sorted(_CUTS))}")
    cut, vocabulary = _CUTS[fields.pre], _vocabulary(fields)
    merges = _given_merges(fields, vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut.merges_whole))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if cut.single_digits else []
    words = [] if cut.pattern is None else [pre_tokenizers.Split(Regex(cut.pattern), "isolated")]
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, *words, by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    if cut.nfc:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _of_characters(fields: _Fields) -> Tokenizer:
    vocabulary = _vocabulary(fields)
    model = models.BPE(
        vocabulary,
        _given_merges(fields, vocabulary) or _scored_merges(fields, vocabulary),
        unk_token=next(iter(fields.of_kind(_UNKNOWN)), None),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    blanks = normalizers.Replace(" ", _SPACE)
    back = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.add_space_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), blanks])
        tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = blanks
        tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _vocabulary(fields: _Fields) -> dict[str, int]:
    return {text: number for number, text in enumerate(fields.tokens)}


def _given_merges(fields: _Fields, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in fields.merges:
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise BadConfig(f"{_FIELD}merges has {merge!r}, of which a part is no token")
        merges.append((left, right))
    return merges


def _scored_merges(fields: _Fields, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Derive merges from SentencePiece's scores, best score first.

    Llama's pieces for several blanks all have the same score. The smaller id then comes first.
    """
    if len(fields.scores) != len(fields.tokens):
        raise BadConfig(f"the GGUF file has neither {_FIELD}merges nor a score for each token")
    parts = [
        (number, text[:at], text[at:])
        for text, number in vocabulary.items()
        for at in range(1, len(text))
        if text[:at] in vocabulary and text[at:] in vocabulary
    ]
    found = [
        (-fields.scores[number], number, vocabulary[left], vocabulary[right], left, right)
        for number, left, right in parts
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _add_ends(fields: _Fields, tokenizer: Tokenizer) -> None:
    adds_bos = fields.model == "llama" if fields.add_bos_token is None else fields.add_bos_token
    bos = fields.token(fields.bos_token_id) if adds_bos else None
    eos = fields.token(fields.eos_token_id) if fields.add_eos_token else None
    if bos is None and eos is None:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[one for one in (bos, "$A", eos) if one is not None],
        special_tokens=[(one, tokenizer.token_to_id(one)) for one in (bos, eos) if one is not None],
    )
