"""Finds the fastest algorithm of cuBLASLt for each product, and prints the table of them.

    python -m benchmarks.tune_products [--rows 128] [--only down] > table.py
    mv table.py kernels/product_table.py

For an 8B's four products, at the numbers of rows that recorded steps have, and for the largest
step. As many candidates as `--seconds` allow are timed once, with weights that are not in the L2
cache: first those that the table has by now and the best at other numbers of rows, then others at
random. The best of them, and the best at the number of rows before, are timed again, by turns,
beside what `linear` takes: a product is repeated until the chip is at its power limit, as it is in
a large step, and there another is the fastest than alone. A row of the table is where one was
faster by 1 % or more. Progress goes to stderr. Needs a Hopper GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.hot import recorded, repeated
from benchmarks.products import SHAPES, cold_weights
from benchmarks.record import progress
from kernels import linear
from kernels.cublaslt import Config, CublasLt, Product, open_cublaslt
from kernels.product_table import TABLE, VERSION

ROWS = (*range(64, 257, 8), 320, 384, 512, 640, 768, 1024, 1280, 8192)
CLUSTERS, CUSTOMS = (2, 3, 4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 5, 6)
COLD_BYTES = 2**28  # of weights that take turns
AGAIN = 4  # candidates that are timed again
TURNS, STRETCH_S = 2, 0.1
GAIN = 0.99
HEAD = '''"""Which algorithm of cuBLASLt computes a product fastest, on an H200.

Made by `python -m benchmarks.tune_products`. By the weight's (features, width) and the number of
rows: the library's ids of tile, cluster and further option.
"""

from __future__ import annotations

VERSION = {version}  # of the library: ids may mean something else in another

TABLE: dict[tuple[int, int], dict[int, tuple[int, int, int]]] = {{
'''
Table = Mapping[tuple[int, int], Mapping[int, tuple[int, int, int]]]
Timed = tuple[float, Config, Product]  # seconds


def main(
    rows: Annotated[list[int] | None, typer.Option(min=1)] = None,
    seconds: Annotated[float, typer.Option(help="Time for each product's candidates.")] = 0.6,
    only: Annotated[list[str] | None, typer.Option(help="These products, by name.")] = None,
) -> None:
    """Print the table; what is not asked for stays as it is."""
    library = open_cublaslt()
    if library is None:
        raise typer.BadParameter("torch has loaded no cuBLASLt")
    counts = rows or ROWS
    known = TABLE if library.version == VERSION else {}
    table = {SHAPES[name]: dict(known.get(SHAPES[name], {})) for name in SHAPES}
    for name in only or SHAPES:
        by_rows = table[SHAPES[name]]
        first = list(dict.fromkeys(Config(*ids) for ids in by_rows.values()))
        for count in counts:
            by_rows.pop(count, None)
        by_rows |= tuned(library, counts, *SHAPES[name], first, seconds)
    print(rendered(library.version, table), end="")


def rendered(version: int, table: Table) -> str:
    """The table as a module."""
    lines = [HEAD.format(version=version)]
    for name, weight in SHAPES.items():
        rows = (f"        {count}: {tuple(ids)},\n" for count, ids in sorted(table[weight].items()))
        lines += [f"    {weight}: {{  # {name}\n", *rows, "    },\n"]
    return "".join([*lines, "}\n"])


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest for one product (None: what there is), and others that were good, best first."""

    config: Config | None
    us: float
    usual_us: float
    good: list[Config]


def tuned(
    library: CublasLt,
    counts: Sequence[int],
    features: int,
    width: int,
    first: list[Config],
    limit: float,
) -> Iterator[tuple[int, Config]]:
    """The numbers of rows for which an algorithm is faster than what there is, and which."""
    weights = cold_weights(features, width, "cuda", COLD_BYTES)
    for count in counts:
        x = torch.randn(count, width, device="cuda").bfloat16()
        found = best(library, x, weights, first, limit)
        progress(
            f"{features} x {width}, {count} rows: {found.usual_us:.1f} -> {found.us:.1f} us,"
            f" {found.config}"
        )
        first = list(dict.fromkeys([*found.good, *first]))
        if found.config is not None and found.us < GAIN * found.usual_us:
            yield count, found.config


def best(
    library: CublasLt, x: Tensor, weights: list[Tensor], first: list[Config], limit: float
) -> Found:
    """Try candidates for `limit` seconds, and the best of them for longer."""
    out = x.new_empty((x.shape[0], weights[0].shape[0]))
    right = linear.launch(x, weights[0], None).float()
    timed = timed_once(library, x, weights, out, candidates(library, first), limit)
    finalists: list[Config | None] = [None]
    graphs = [recorded(partial(_usual, x, weights))]
    others = [one for one in timed[AGAIN:] if one[1] in first[:AGAIN]]
    for _, config, made in timed[:AGAIN] + others:
        library.multiply(made, x, weights[0], out.fill_(torch.nan))
        if (out.float() - right).norm() < 0.01 * right.norm():
            finalists.append(config)
            graphs.append(recorded(partial(_tuned, library, made, x, weights, out)))
    took = [1e6 * seconds / len(weights) for seconds in sustained(graphs)]
    ranked = sorted(zip(took, finalists, strict=True), key=_time)
    us, winner = ranked[0]
    return Found(winner, us, took[0], [config for _, config in ranked if config is not None])


def timed_once(
    library: CublasLt,
    x: Tensor,
    weights: list[Tensor],
    out: Tensor,
    configs: Iterator[Config],
    limit: float,
) -> list[Timed]:
    """As many of `configs` as `limit` seconds allow, the fastest first."""
    (rows, width), features = x.shape, weights[0].shape[0]
    timed = list[Timed]()
    until = time.perf_counter() + limit
    for config in configs:
        if time.perf_counter() > until:
            break
        made = library.product(rows, features, width, config)
        if made is not None:
            timed.append((once(library, made, x, weights, out), config, made))
    return sorted(timed, key=_time)


def _time(timed: tuple[float, *tuple[object, ...]]) -> float:
    return timed[0]


def _usual(x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        linear.launch(x, weight, None)


def _tuned(library: CublasLt, made: Product, x: Tensor, weights: list[Tensor], out: Tensor) -> None:
    for weight in weights:
        library.multiply(made, x, weight, out)


def candidates(library: CublasLt, first: list[Config]) -> Iterator[Config]:
    """All there are: those given, then the others in random order."""
    yield from first
    others = [Config(*ids) for ids in product(library.tiles(), CLUSTERS, CUSTOMS)]
    random.Random(0).shuffle(others)
    yield from (config for config in others if config not in first)


def once(library: CublasLt, made: Product, x: Tensor, weights: list[Tensor], out: Tensor) -> float:
    """Seconds of one round, launched one by one: a product with each of the weights."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    _tuned(library, made, x, weights, out)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def sustained(graphs: Sequence[torch.cuda.CUDAGraph]) -> list[float]:
    """Seconds of a replay of each, in stretches long enough that the chip throttles, by turns."""
    stretch(graphs[0])  # so that the first does not find a cool chip
    turns = [[stretch(graph) for graph in graphs] for _ in range(TURNS)]
    return [fmean(times) for times in zip(*turns, strict=True)]


def stretch(graph: torch.cuda.CUDAGraph) -> float:
    """Seconds of a replay, once it has been repeated for a while."""
    repeated(graph, STRETCH_S / 3)
    return repeated(graph, STRETCH_S)


if __name__ == "__main__":
    typer.run(main)
