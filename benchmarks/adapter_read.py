"""The time to read an adapter's files, by part, without a server.

    python -m benchmarks.adapter_read [--model llama-3.1-8b] [--rank 16] [--times 5]

Writes an adapter of all projections in PEFT's format. Reports the minimum milliseconds of each
part, by the wall clock and by the processor time of all threads:

    copy        the file is copied into memory (the floor)
    digest      SHA-256 of the file's bytes (another floor)
    read        the files are opened, checked and copied into memory
    matrices    the tensors are found, checked and scaled
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.adapters import write_adapter
from benchmarks.record import emit
from engine.models.adapters.adapted import Adaptable
from engine.models.adapters.adapter import AdapterShapes, read_adapter
from engine.models.adapters.adapter_files import WEIGHTS_FILE, read_adapter_files
from engine.models.architectures.registry import read_model_config
from tests.doubles.engine.shapes import model_directory

Times = Annotated[int, typer.Option(min=1)]


def timed(part: Callable[[], object], times: int) -> dict[str, float]:
    """Return the fewest milliseconds of `times` calls."""
    walls, processors = list[float](), list[float]()
    for _ in range(times):
        wall, processor = time.perf_counter(), time.process_time()
        part()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return {"wall_ms": 1e3 * min(walls), "processor_ms": 1e3 * min(processors)}


def main(model: str = "llama-3.1-8b", rank: int = 16, times: Times = 5) -> None:
    """Print a JSON line for each part."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory, folder = model_directory(model, Path(scratch)), Path(scratch, "adapters")
        write_adapter(folder / "a", json.loads((directory / "config.json").read_text()), rank)
        config = read_model_config(directory)
        whole = Adaptable.whole(config, torch.bfloat16, of_experts=False)
        shapes = {name: (rows, one.size_in) for one in whole.linears for name, rows in one.rows}
        fits = AdapterShapes(shapes, config.names, rank, torch.bfloat16)
        file = folder / "a" / WEIGHTS_FILE
        size = file.stat().st_size
        content = file.read_bytes()
        emit("copy", megabytes=size / 1e6, **timed(file.read_bytes, times))
        emit("digest", **timed(lambda: hashlib.sha256(content).digest(), times))
        emit("read", **timed(lambda: read_adapter_files(folder, "a", size), times))
        files = read_adapter_files(folder, "a", size)
        emit("matrices", **timed(lambda: read_adapter(files, fits), times))


if __name__ == "__main__":
    typer.run(main)
