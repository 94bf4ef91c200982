"""The time per token of requests with and without adapters, on a real server with random weights.

    python -m benchmarks.adapters --model llama-3.1-8b [--adapters 8] [--rank 16] [--quick]

Writes adapters of all projections in PEFT's format and loads them for the demo tenant. The
benchmark reports the median time between tokens of 1, 8 and 32 rows: without adapters, with all
adapters in turn, and with one adapter. Then it loads another adapter, and reports the times of the
load, of the adapter's first request and of the next request.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
import torch
import typer
from safetensors.torch import save_file

from benchmarks.record import emit, progress
from benchmarks.running import Running, running
from tests.doubles.engine.shapes import model_directory

START_S = 300.0
ROWS = (1, 8, 32)
SEEN_S = 2.0  # seconds until all workers of the gateway know an adapter that one worker loaded


def write_adapter(folder: Path, config: dict[str, Any], rank: int) -> None:
    """Write a random PEFT adapter of all projections of a Llama-like model."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    sizes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.o_proj": (queries, hidden),
        **{f"self_attn.{one}_proj": (hidden, keys) for one in "kv"},
        **{f"mlp.{one}_proj": (hidden, inner) for one in ("gate", "up")},
        "mlp.down_proj": (inner, hidden),
    }
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (size_in, size_out) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}.lora"
            tensors[f"{prefix}_A.weight"] = (torch.randn(rank, size_in) * 0.02).bfloat16()
            tensors[f"{prefix}_B.weight"] = (torch.randn(size_out, rank) * 0.02).bfloat16()
    folder.mkdir(parents=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    fields["target_modules"] = [name.split(".")[1] for name in sizes]
    (folder / "adapter_config.json").write_text(json.dumps(fields))


def ask(server: Running, model: str, prompt: list[int], tokens: int) -> tuple[float, float]:
    """Stream an answer.

    Returns the seconds until its first token, and the mean seconds between tokens.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True}
    body |= {"ignore_eos": True, "temperature": 0}
    headers = {"Authorization": f"Bearer {server.key}"}
    begun, stamps, url = time.perf_counter(), list[float](), server.url + "/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=300) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data:") and "[DONE]" not in line:
                stamps.append(time.perf_counter())
    return stamps[0] - begun, (stamps[-1] - stamps[0]) / (tokens - 1)


def rows(server: Running, models: Sequence[str], count: int, prompt: int, tokens: int) -> float:
    """Ask for `count` answers at once, from the models of `models` in turn.

    Returns the median seconds between tokens.
    """
    dice = random.Random(count)
    prompts = [[dice.randrange(10, 500) for _ in range(prompt)] for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        asked = [
            threads.submit(ask, server, models[number % len(models)], one, tokens)
            for number, one in enumerate(prompts)
        ]
        return statistics.median(one.result()[1] for one in asked)


def main(
    model: str = "llama-3.1-8b",
    adapters: Annotated[int, typer.Option(min=1)] = 8,
    rank: Annotated[int, typer.Option(min=1)] = 16,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model.")] = False,
) -> None:
    """Print a JSON line for each number of rows, and a line for loading an adapter."""
    model, prompt, tokens = ("llama-2-tiny", 64, 16) if quick else (model, 1024, 200)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory, folder = model_directory(model, Path(scratch)), Path(scratch, "adapters")
        config = json.loads((directory / "config.json").read_text())
        names = [f"a{number}" for number in range(adapters + 1)]
        for name in names:
            write_adapter(folder / name, config, rank)
        given = {"load_format": "dummy", "adapters_dir": str(folder), "drafts": "off"}
        given |= {"adapter_slots": str(adapters), "adapter_rank": str(rank)}
        given |= {"cache_tokens": "16384"} if quick else {}
        progress("starting the server")
        with running(directory, Path(scratch, "data"), start_s=START_S, **given) as server:
            tenants = server.admin("GET", "tenants")["tenants"]
            path = next(f"tenants/{one['id']}/adapters" for one in tenants if one["name"] == "demo")
            *loaded, last = names
            for name in loaded:
                server.admin("POST", path, {"name": name, "path": name})
            time.sleep(SEEN_S)
            for count in ROWS:
                kinds = {"none": [server.model()], "all": loaded, "one": loaded[:1]}
                measured = {}
                for kind, asked in kinds.items():
                    rows(server, asked, count, prompt, max(tokens // 5, 2))
                    measured[f"{kind}_ms"] = 1e3 * rows(server, asked, count, prompt, tokens)
                emit(f"{count} rows", **measured)
            begun = time.perf_counter()
            server.admin("POST", path, {"name": last, "path": last})
            load_ms = 1e3 * (time.perf_counter() - begun)
            time.sleep(SEEN_S)
            firsts = [1e3 * ask(server, last, [10 + turn] * 64, 8)[0] for turn in range(2)]
            emit("an adapter", load_ms=load_ms, first_ms=firsts[0], next_ms=firsts[1])


if __name__ == "__main__":
    typer.run(main)
