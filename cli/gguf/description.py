"""A directory with the JSON files of a Hugging Face model, made from a GGUF file.

    config.json  generation_config.json  tokenizer.json  tokenizer_config.json
    model.gguf -> the file itself

The directory is written once for each file (path, size, time of change), in the user's cache.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import xxhash

from cli.gguf.config import read_config, read_generation
from cli.gguf.tokenizer import read_tokenizer, read_tokenizer_config
from engine.models.checkpoints.weight_files import GGUF_FILE
from engine.models.errors import BadConfig
from engine.models.gguf.families import ROPE_FACTORS
from engine.models.gguf.header import read_header
from engine.models.gguf.numbers import read_numbers


def describe(path: Path, places: Path) -> Path:
    """Return the directory below `places` for the GGUF file `path`. A missing directory is written.

    Raises ModelError for a file that cannot be served, and OSError if the directory cannot be
    written.
    """
    path = path.resolve()
    stat = path.stat()
    known_by = f"{path} {stat.st_size} {stat.st_mtime_ns}"
    place = places / f"{path.stem}-{xxhash.xxh3_64_hexdigest(known_by.encode())}"
    if not place.is_dir():
        places.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=places) as beside:
            written = Path(beside) / place.name
            written.mkdir()
            _write(path, written)
            _publish(written, place)
    return place


def _publish(written: Path, place: Path) -> None:
    try:
        written.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _write(path: Path, directory: Path) -> None:
    header = read_header(path)
    factors = None
    if ROPE_FACTORS in header.tensors:
        factors = read_numbers(np.memmap(path, np.uint8, "r"), header.tensors[ROPE_FACTORS])
    contents = {
        "config.json": read_config(header, None if factors is None else factors.tolist()),
        "generation_config.json": read_generation(header),
        "tokenizer_config.json": read_tokenizer_config(header),
    }
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    try:
        read_tokenizer(header).save(str(directory / "tokenizer.json"))
    except (TypeError, ValueError) as error:
        raise BadConfig(f"the tokenizer of {path} cannot be read: {error}") from error
    os.symlink(path, directory / GGUF_FILE)
