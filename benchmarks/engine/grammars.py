"""How long grammars take an engine: to read its vocabulary, to compile a schema, to make a mask.

    python -m benchmarks.engine.grammars [--tokens 150000] [--fields 100] [--schemas 40]

prints JSON lines. The vocabulary has bytes and random words, as many as asked for. Each schema is
an object of that many fields, with names that no other has. A schema is compiled as requests have
it compiled, in a process and a thread beside this one. Masks are those along a document that
follows the schema, byte by byte; they are made on the engine's thread.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.record import emit, p50_and_p99
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import TOKENIZER_FILE, read_vocabulary
from engine.link.messages import Grammar

LETTERS = list('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "{}[]:,.-_')
END = "<|end|>"
MASKED_BYTES = 200  # of a document


def write_tokenizer(directory: Path, num_tokens: int) -> dict[str, int]:
    """A byte-level vocabulary with random words in it; returns the id of each byte's character."""
    random = np.random.default_rng(3)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = dict.fromkeys(alphabet)
    while len(words) < num_tokens - 1:
        word = "".join(random.choice(LETTERS, size=int(random.integers(2, 12))))
        words.setdefault(word.replace(" ", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"))
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(directory / TOKENIZER_FILE))
    return {letter: vocabulary[letter] for letter in alphabet}


def schema(number: int, fields: int) -> Grammar:
    """An object of texts, numbers and lists, all of them required."""
    kinds = (
        {"type": "string"},
        {"type": "integer"},
        {"type": "array", "items": {"type": "number"}},
    )
    properties = {f"field_{number}_{n}": kinds[n % len(kinds)] for n in range(fields)}
    spelled = {"type": "object", "properties": properties, "required": list(properties)}
    return Grammar("json_schema", json.dumps({**spelled, "additionalProperties": False}))


def document(number: int, fields: int) -> str:
    """A text that follows `schema`."""
    values = ("some text", 12, [1.5])
    return json.dumps({f"field_{number}_{n}": values[n % len(values)] for n in range(fields)})


def masked(constraint: GrammarConstraint, text: str, ids: dict[str, int]) -> list[float]:
    """Seconds of each mask before the first bytes of `text`, of which each is a token."""
    space = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
    seconds = []
    for letter in text[:MASKED_BYTES]:
        began = time.perf_counter()
        constraint.allowed()
        seconds.append(time.perf_counter() - began)
        constraint.advance(ids[space if letter == " " else letter])
    return seconds


def main(
    tokens: Annotated[int, typer.Option(min=1000)] = 150_000,
    fields: Annotated[int, typer.Option(min=1)] = 100,
    schemas: Annotated[int, typer.Option(min=2)] = 40,
) -> None:
    """Measure and print. The first schema starts the process that checks, and is told apart."""
    with tempfile.TemporaryDirectory() as directory:
        ids = write_tokenizer(Path(directory), tokens)
        began = time.perf_counter()
        vocabulary = read_vocabulary(Path(directory), tokens, (tokens - 1,))
        emit("vocabulary", read_s=time.perf_counter() - began, tokens=tokens)
    compiler = GrammarCompiler(vocabulary, num_threads=1)
    compile_s, mask_s = [], list[float]()
    for number in range(schemas):
        began = time.perf_counter()
        compilation = compiler.compile("flow", schema(number, fields))
        while not compilation.is_done:
            time.sleep(0.0002)
        compile_s.append(time.perf_counter() - began)
        mask_s += masked(GrammarConstraint(compilation), document(number, fields), ids)
    compiler.close()
    later = sorted(compile_s[1:])
    emit(
        "compile",
        fields=fields,
        first_ms=compile_s[0] * 1e3,
        p90_ms=later[int(0.9 * len(later))] * 1e3,
        **p50_and_p99(later),
    )
    emit("mask", tokens=tokens, **p50_and_p99(mask_s))


if __name__ == "__main__":
    typer.run(main)
