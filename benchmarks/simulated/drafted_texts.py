"""Texts to replay through the drafters: one JSON object a line, with a prompt and its answer.

{"prompt": "Bring this file to ...", "answer": "import os\\n...", "tenant": "acme"}

Prompt and answer are texts, or lists of token ids; tenants are optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import typer
from tokenizers import Tokenizer

from cli.load.requests.trace import DEFAULT_TENANT
from prefix_cache.hashing import TokenIds


class TextLine(msgspec.Struct):
    """A line of the file. Other fields are ignored."""

    prompt: str | list[int]
    answer: str | list[int]
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, eq=False)
class DraftedText:
    """A prompt and its answer as token ids, (n,) int32 each, and their tenant."""

    prompt: TokenIds
    answer: TokenIds
    tenant: str


def read_texts(file: Path, tokenizer: Path) -> list[DraftedText]:
    """Read a file of texts; `tokenizer` is a tokenizer.json, or its directory.

    Raises BadParameter for a line that is no text or has an empty part.
    """
    inner = Tokenizer.from_file(
        str(tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer)
    )
    texts = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            read = msgspec.json.decode(line, type=TextLine)
        except msgspec.MsgspecError as error:
            raise typer.BadParameter(f"{file}, line {number}: {error}") from None
        prompt, answer = (_ids(part, inner) for part in (read.prompt, read.answer))
        if not len(prompt) or not len(answer):
            raise typer.BadParameter(f"{file}, line {number}: the prompt or the answer is empty")
        texts.append(DraftedText(prompt, answer, read.tenant))
    return texts


def _ids(part: str | list[int], tokenizer: Tokenizer) -> TokenIds:
    ids = tokenizer.encode(part, add_special_tokens=False).ids if isinstance(part, str) else part
    return np.array(ids, np.int32)
