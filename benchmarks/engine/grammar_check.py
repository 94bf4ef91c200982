"""CPU time of checking a grammar, with and without a model's tokens, and memory.

    python -m benchmarks.engine.grammar_check [DIRECTORY] [--grammars 15] [--masks 200]

DIRECTORY has a `tokenizer.json`. By default it is the embedded model's directory. Each grammar is
new, so none is cached. Prints a JSON line for each kind of grammar. A line has the median times of
a check and the memory of a compiled grammar. A line also has the growth of this memory per second
of computing masks along random texts.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from benchmarks.record import emit
from engine.grammars.allocated import allocated_bytes
from engine.grammars.check import checked, checked_over
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary, read_vocabulary
from engine.link.messages import Grammar

EMBEDDED = Path(__file__).parents[2] / "handbook" / "model"


def fields(count: int) -> Callable[[int], Grammar]:
    """Return a function that writes object schemas of `count` fields, the first with a new name."""

    def grammar(number: int) -> Grammar:
        names = [f"field_{number}", *(f"field_{place}_of" for place in range(1, count))]
        properties = {name: {"type": "string", "maxLength": 40} for name in names}
        schema = {"type": "object", "properties": properties, "required": names}
        return Grammar("json_schema", json.dumps(schema))

    return grammar


def any_object(number: int) -> Grammar:
    """Write a schema of any object, with its own description."""
    return Grammar("json_schema", json.dumps({"type": "object", "description": f"{number}"}))


def words(number: int) -> Grammar:
    """Write a grammar of words with at least `number` letters."""
    return Grammar("regex", f"([a-z]{{1,12}} ){{{number % 7 + 1},200}}")


KINDS = {"any object": any_object, "20 fields": fields(20), "100 fields": fields(100)} | {
    "words": words
}


def main(
    directory: Annotated[Path, typer.Argument()] = EMBEDDED, grammars: int = 15, masks: int = 200
) -> None:
    """Print a JSON line for each kind of grammar."""
    vocabulary = _vocabulary(directory)
    for name, kind in KINDS.items():
        new = [kind(number) for number in range(grammars)]
        num_bytes, grown, spent_s = _walked(kind(grammars), vocabulary, masks)
        emit(
            name,
            without_tokens_ms=median(_cpu_ms(partial(checked, one)) for one in new),
            with_tokens_ms=median(_cpu_ms(partial(checked_over, one, vocabulary)) for one in new),
            compiled_mib=num_bytes / 2**20,
            grown_mib_per_s_of_masks=grown / 2**20 / spent_s,
        )


def _vocabulary(directory: Path) -> Vocabulary:
    tokens = json.loads((directory / "tokenizer.json").read_text())
    ids = [*tokens["model"]["vocab"].values(), *(one["id"] for one in tokens["added_tokens"])]
    return read_vocabulary(directory, max(ids) + 1, (max(ids),))


def _cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def _walked(grammar: Grammar, vocabulary: Vocabulary, masks: int) -> tuple[int, int, float]:
    """Make `masks` masks of a compiled grammar.

    Returns the compiled grammar's bytes, the bytes by which it grew, and the CPU seconds.
    """
    found, rng = checked_over(grammar, vocabulary), random.Random(0)
    assert not found.error, found.error
    compilation = Compilation(compiled(found.text, vocabulary))
    before, spent_s, left = allocated_bytes(), 0.0, masks
    while left:
        constraint = GrammarConstraint(compilation)
        while left and not constraint.is_over:
            began = time.process_time()
            mask = constraint.allowed()
            spent_s += time.process_time() - began
            left -= 1
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            constraint.advance(int(rng.choice(allowed)))
    return found.num_bytes, allocated_bytes() - before, spent_s


if __name__ == "__main__":
    typer.run(main)
