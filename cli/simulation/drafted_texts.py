"""Texts to replay through the drafters: a JSON line for each prompt and answer.

    {"prompt": "Bring this file to ...", "answer": "import os\\n...", "tenant": "acme"}

Prompt and answer are texts, or lists of token ids. Tenants are optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from tokenizers import Tokenizer

from cli.errors import BadSetting, CliError
from cli.json_text import NotJson, decode_json
from cli.load.requests.trace import DEFAULT_TENANT
from prefix_cache.hashing import TokenIds

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class BadTexts(CliError):
    """A file of texts that cannot be read. The message names the line."""

    exit_code = 2


class TextLine(msgspec.Struct):
    """A line of the file. Other fields are ignored."""

    prompt: str | list[TokenId]
    answer: str | list[TokenId]
    tenant: Annotated[str, msgspec.Meta(min_length=1)] = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, eq=False)
class DraftedText:
    """A prompt and its answer as token ids, each (n,) int32, and the tenant of both."""

    prompt: TokenIds
    answer: TokenIds
    tenant: str


def read_texts(file: Path, tokenizer: Path) -> list[DraftedText]:
    """Read a file of texts. Raises BadTexts.

    `tokenizer` is a tokenizer.json, or its directory.
    """
    inner = _tokenizer(tokenizer)
    texts = []
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise BadTexts(f"{file}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = decode_json(line, TextLine)
        except NotJson as error:
            raise BadTexts(f"{file}, line {number}: {error}") from None
        prompt, answer = (_ids(part, inner) for part in (read.prompt, read.answer))
        if not len(prompt) or not len(answer):
            raise BadTexts(f"{file}, line {number}: the prompt or the answer is empty")
        texts.append(DraftedText(prompt, answer, read.tenant))
    if not texts:
        raise BadTexts(f"{file} has no texts")
    return texts


def _tokenizer(path: Path) -> Tokenizer:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise BadSetting("--tokenizer", f"there is no file {file}")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise BadSetting("--tokenizer", f"{file}: {error}") from None


def _ids(part: str | list[int], tokenizer: Tokenizer) -> TokenIds:
    ids = tokenizer.encode(part, add_special_tokens=False).ids if isinstance(part, str) else part
    return np.array(ids, np.int32)
