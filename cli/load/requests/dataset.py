"""Lengths of prompts and answers from a file: ShareGPT conversations, questions, or a trace.

    ShareGPT   a JSON list of {"conversations": [{"from": "human", "value": ...}, {"from": "gpt",
               "value": ...}, ...]}: the token counts of the first question and its answer
    questions  a line {"turns": [...]}, as in MT-bench: the token count of the first turn; the flags
               give the length of answers
    trace      a line {"timestamp": ms, "input_length": ..., "output_length": ..., "hash_ids":
               [...]}: both lengths; prompts with equal ids begin with equal blocks

Conversations and questions are drawn in random order; all are drawn once before any is repeated.
Requests of a trace are taken in their order.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from cli.errors import BadSetting
from cli.json_text import NotJson, decode_json
from cli.load.requests.trace import read_trace

FLAG = "--dataset"
CountTokens = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The numbers of tokens of a prompt and its answer.

    `blocks` are a trace's ids, each of which stands for `block_size` tokens.
    """

    prompt: int
    output: int
    blocks: tuple[int, ...] = ()
    block_size: int = 0


class DatasetTurn(msgspec.Struct):
    """A message in a conversation, by the user or the model."""

    value: str


class Conversation(msgspec.Struct):
    """An entry of ShareGPT's list. Other fields are ignored."""

    conversations: list[DatasetTurn]


class Questions(msgspec.Struct):
    """A line of MT-bench's questions. Other fields are ignored."""

    turns: list[str]


@dataclass(frozen=True, slots=True)
class Texts:
    """Questions, and their answers if the file has answers."""

    pairs: tuple[tuple[str, str | None], ...]

    def drawn(self, seed: int) -> Iterator[tuple[str, str | None]]:
        """Yield pairs without end: all pairs in random order before any pair repeats."""
        rng = random.Random(f"{seed} dataset")
        while True:
            yield from rng.sample(self.pairs, len(self.pairs))


def read_sizes(
    path: Path, count: int, seed: int, *, block_size: int, output: int, count_tokens: CountTokens
) -> list[RequestSize]:
    """Read `count` sizes from a file. `output` replaces missing answer lengths.

    Raises BadSetting, and the errors of `count_tokens`.
    """
    found = _read(path)
    if found is None:
        return _of_trace(path, count, block_size)
    pairs = list(islice(found.drawn(seed), count))
    prompts = count_tokens([question for question, _ in pairs])
    answers = iter(count_tokens([answer for _, answer in pairs if answer is not None]))
    return [
        RequestSize(max(prompt, 1), output if answer is None else max(next(answers), 1))
        for prompt, (_, answer) in zip(prompts, pairs, strict=True)
    ]


def _read(path: Path) -> Texts | None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadSetting(FLAG, f"{path}: {error.strerror}") from error
    try:
        if content.lstrip().startswith(b"["):
            return _texts(path, _conversations(content))
        first = decode_json(content.partition(b"\n")[0], dict[str, Any])
        return _texts(path, _questions(content)) if "turns" in first else None
    except NotJson as error:
        raise BadSetting(FLAG, f"{path}: {error}") from error


def _texts(path: Path, pairs: list[tuple[str, str | None]]) -> Texts:
    if not pairs:
        raise BadSetting(FLAG, f"{path}: there is no question in it")
    return Texts(tuple(pairs))


def _conversations(content: bytes) -> list[tuple[str, str | None]]:
    read = decode_json(content, list[Conversation])
    starts = ([said.value for said in one.conversations[:2]] for one in read)
    return [(start[0], start[1]) for start in starts if len(start) == 2 and all(start)]


def _questions(content: bytes) -> list[tuple[str, str | None]]:
    lines = (line for line in content.splitlines() if line.strip())
    read = (decode_json(line, Questions) for line in lines)
    return [(one.turns[0], None) for one in read if one.turns]


def _of_trace(path: Path, count: int, block_size: int) -> list[RequestSize]:
    requests = read_trace(path, block_size).requests
    if len(requests) < count:
        raise BadSetting(
            "--requests", f"{count} is more than the {len(requests)} requests of {path}"
        )
    return [
        RequestSize(
            one.input_tokens, max(one.output_tokens, 1), tuple(one.ids.tolist()), block_size
        )
        for one in requests[:count]
    ]
