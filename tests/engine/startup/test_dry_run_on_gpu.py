"""In a GPU process that has compiled nothing, threads compile all kernels ahead of an engine's
start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.engine.shapes import model_directory
from tests.engine.conftest import MakeCheckpoint

pytestmark = pytest.mark.gpu

START = """
import json, sys, threading
import triton
from engine.config import EngineConfig
from engine.startup.loading import open_model

ahead, late = [], []

def compiled(**what):
    by_start = threading.current_thread() is threading.main_thread()
    (late if by_start else ahead).append(what["fn"].name)

triton.knobs.runtime.jit_post_compile_hook = compiled
config = EngineConfig.of(
    model_dir=sys.argv[1], socket="", device="cuda", dtype="bfloat16", memory_fraction=0.2,
    max_running=256, graph_tokens=int(sys.argv[2]), load_format=sys.argv[3],
)
open_model(config)
print(json.dumps([ahead, late]))
"""


def start(
    model_dir: Path, cache: Path, graph_tokens: int, load_format: str = "auto"
) -> tuple[list[str], list[str]]:
    """Start an engine; return the kernels compiled ahead, and those compiled only when used."""
    done = subprocess.run(
        [sys.executable, "-c", START, str(model_dir), str(graph_tokens), load_format],
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    ahead, late = json.loads(done.stdout.splitlines()[-1])
    return ahead, late


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_start_waits_for_no_compiler_once_it_has_rehearsed(
    checkpoint: MakeCheckpoint, tmp_path: Path, name: str
) -> None:
    model_dir = checkpoint(name).model_dir
    ahead, late = start(model_dir, tmp_path, graph_tokens=512)
    assert late == []
    assert len(ahead) > 10
    # kernels cached on disk are only loaded
    again, late = start(model_dir, tmp_path, graph_tokens=512)
    assert (sorted(again), late) == (sorted(ahead), [])
    fewer, late = start(model_dir, tmp_path, graph_tokens=0)
    assert late == []
    assert 0 < len(fewer) < len(ahead), "the control: without captured graphs there is less"


def test_a_start_with_our_own_products_of_few_rows_compiles_everything_ahead(
    tmp_path: Path,
) -> None:
    """Compile the GEMMs of few rows ahead.

    The checkpoints above are too small for these GEMMs. 9 rows are 8 decodes and a prompt.
    """
    model_dir = model_directory("qwen3-0.6b", tmp_path)
    ahead, late = start(model_dir, tmp_path / "cache", 512, load_format="dummy")
    assert late == []
    assert len(ahead) > 10
