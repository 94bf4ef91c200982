"""Three load generators: the command of each on one workload, and the figures of its report."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.running import RATOON
from cli.load.requests.prompts import WORDS

Figures = dict[str, float]
TIMES = ("ttft", "tpot", "itl", "e2e")
PARTS = ("mean", "p50", "p99")


@dataclass(frozen=True, slots=True)
class Workload:
    """A closed loop of streamed chats with prompts of random words, on one server."""

    url: str
    key: str
    model: str
    tokenizer: Path  # tokenizer directory for the tools, though usage counts come from the server
    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    body: Mapping[str, Any]  # further fields of every request's body

    @property
    def fields(self) -> dict[str, Any]:
        """Return the body fields that control the answer, equal for all tools."""
        return {"max_completion_tokens": self.output_tokens, "ignore_eos": True, **self.body}


@dataclass(frozen=True, slots=True)
class Tool:
    """A load generator: its command for a workload and directory, and its report there."""

    name: str
    command: Callable[[Workload, Path], list[str]]
    figures: Callable[[Path], Figures]

    def run(self, load: Workload, directory: Path) -> Figures:
        """Run the tool; return seconds, tokens and rates. RuntimeError has its last output."""
        directory.mkdir(parents=True)
        environment = {**os.environ, "OPENAI_API_KEY": load.key}
        with (directory / "log").open("wb") as log, (directory / "out").open("wb") as out:
            command = self.command(load, directory)
            ran = subprocess.run(command, stdout=out, stderr=log, env=environment, check=False)
        if ran.returncode != 0:
            words = (directory / "log").read_text() + (directory / "out").read_text()
            raise RuntimeError(f"{self.name} ended with {ran.returncode}: {words[-3000:]}")
        return self.figures(directory)


def ratoon() -> Tool:
    """Make the tool `ratoon bench` of this checkout."""

    def command(load: Workload, _: Path) -> list[str]:
        words = [*RATOON, "bench", "--json", "--endpoint", "chat", "--shared-tokens", "0"]
        words += ["--url", load.url, "--key", load.key, "--served-model", load.model]
        words += ["--requests", f"{load.requests}", "--concurrency", f"{load.concurrency}"]
        words += ["--prompt-tokens", f"{load.prompt_tokens}"]
        words += ["--output-tokens", f"{load.output_tokens}"]
        return [*words, "--extra-body", json.dumps(load.fields)]

    def figures(directory: Path) -> Figures:
        said = json.loads((directory / "out").read_text())
        rates = {name: said[name] for name in ("requests_per_s", "output_tokens_per_s")}
        times = {f"{time}_{part}": said[f"{time}_s"][part] for time in TIMES for part in PARTS}
        return {**rates, "output_tokens": said["output_tokens"], **times}

    return Tool("ratoon bench", command, figures)


def vllm(started: str) -> Tool:
    """Make the tool `vllm bench serve`; `started` is the command before its flags."""

    def command(load: Workload, directory: Path) -> list[str]:
        write_prompts(load, directory / "prompts.jsonl", "prompt")
        words = [*shlex.split(started), "--backend", "openai-chat"]
        words += ["--base-url", load.url, "--endpoint", "/v1/chat/completions"]
        words += ["--model", load.model, "--tokenizer", f"{load.tokenizer}"]
        words += ["--dataset-name", "custom", "--dataset-path", f"{directory}/prompts.jsonl"]
        words += ["--skip-chat-template", "--custom-output-len", f"{load.output_tokens}"]
        words += ["--num-prompts", f"{load.requests}", "--max-concurrency", f"{load.concurrency}"]
        words += ["--temperature", "0", "--extra-body", json.dumps(load.fields)]
        words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"]
        words += ["--disable-tqdm", "--save-result", "--result-dir", f"{directory}"]
        return [*words, "--result-filename", "report.json"]

    def figures(directory: Path) -> Figures:
        said = json.loads((directory / "report.json").read_text())
        names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
        return {
            "requests_per_s": said["request_throughput"],
            "output_tokens_per_s": said["output_throughput"],
            "output_tokens": said["total_output_tokens"],
            **{
                f"{time}_{part}": said[f"{part}_{names[time]}_ms"] / 1e3
                for time in TIMES
                for part in PARTS
            },
        }

    return Tool("vllm bench serve", command, figures)


def aiperf(started: str) -> Tool:
    """Make the tool `aiperf profile`, `started` as `vllm`. Its inter-token latency is a TPOT."""

    def command(load: Workload, directory: Path) -> list[str]:
        write_prompts(load, directory / "prompts.jsonl", "text")
        words = [*shlex.split(started), "--endpoint-type", "chat", "--streaming"]
        words += ["--url", load.url, "--api-key", load.key, "--model", load.model]
        words += ["--tokenizer", f"{load.tokenizer}", "--use-server-token-count"]
        words += ["--input-file", f"{directory}/prompts.jsonl"]
        words += ["--custom-dataset-type", "single_turn"]
        words += ["--dataset-sampling-strategy", "sequential"]
        words += ["--request-count", f"{load.requests}", "--concurrency", f"{load.concurrency}"]
        words += ["--extra-inputs", json.dumps({**load.fields, "temperature": 0})]
        words += ["--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"]
        return [*words, "--export-level", "summary", "--output-artifact-dir", f"{directory}"]

    def figures(directory: Path) -> Figures:
        said = json.loads((directory / "profile_export_aiperf.json").read_text())
        names = {
            "ttft": "time_to_first_token",
            "tpot": "inter_token_latency",
            "itl": "inter_chunk_latency",
            "e2e": "request_latency",
        }
        parts = {"mean": "avg", "p50": "p50", "p99": "p99"}
        return {
            "requests_per_s": said["request_throughput"]["avg"],
            "output_tokens_per_s": said["output_token_throughput"]["avg"],
            "output_tokens": said["total_osl"]["avg"],  # `total_output_tokens` excludes reasoning
            **{
                f"{time}_{part}": said[names[time]][parts[part]] / 1e3
                for time in TIMES
                for part in PARTS
            },
        }

    return Tool("aiperf", command, figures)


def write_prompts(load: Workload, path: Path, name: str) -> None:
    """Write new prompts as lines of JSON objects, with the text under `name`."""
    texts = (" ".join(random.choices(WORDS, k=load.prompt_tokens)) for _ in range(load.requests))
    path.write_text("".join(json.dumps({name: text}) + "\n" for text in texts))
