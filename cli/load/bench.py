"""`ratoon bench`: sends load to a running server and reports how it did."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
import typer

from cli.errors import BadSetting, CliError
from cli.load.load import (
    PATHS,
    Body,
    LoadTarget,
    RequestOutcome,
    Sender,
    closed_loop,
    drive,
    load_session,
    stream_body,
)
from cli.load.phases import SMALL, SPECIAL_IDS, WorkloadName, WorkloadSizes, draw_phases, longest
from cli.load.report import LoadReport, make_report, show
from cli.operating.admin_client import AdminClient, load_target
from cli.options.flags import field
from cli.options.options import Json, TargetFlags
from cli.output import print_result
from cli.progress import Advance, progress_bar

EndpointName = Literal["completions", "chat"]
WORDS = (
    "all", "and", "any", "but", "can", "day", "for", "how", "new", "not", "now", "old", "see",
    "two",
)  # fmt: skip
_load = partial(field, panel="Load")


@dataclass(frozen=True, slots=True)
class LoadFlags:
    """The load of `ratoon bench`."""

    workload: WorkloadName | None = _load(
        None,
        "Run a named workload instead of the load that the flags below describe; of these only "
        "--vocab, --seed, --timeout-s and --json apply to it.",
    )
    small: bool = _load(False, "Run the workload at a size for a CPU and a short context.")
    processes: int = _load(4, "Processes that send a workload's requests.", min=1, max=64)
    endpoint: EndpointName = _load(
        "completions", "'completions' sends token ids; 'chat' sends words, of about as many tokens."
    )
    requests: int = _load(64, "Requests in all.", min=1)
    concurrency: int = _load(8, "Requests in flight at once.", min=1)
    prompt_tokens: int = _load(512, "Tokens of every prompt.", min=1)
    shared_tokens: int = _load(256, "How many of these all prompts begin with.", min=0)
    output_tokens: int = _load(64, "Tokens of every answer.", min=1)
    vocab: int = _load(
        256, "Token ids are drawn below this; at most the model's vocabulary.", min=16
    )
    seed: int | None = _load(
        None, "Seed of the prompts. Left out: a new one, so that no run hits earlier prefixes."
    )
    timeout_s: float = _load(120.0, "Seconds of silence after which a request failed.", min=0.1)
    json: Json = False


def bench(target: TargetFlags, load: LoadFlags) -> None:
    """Load a running server; report times, tokens/s and the run's cache hit rate.

    A closed loop: each of --concurrency callers sends its next request when its last one has
    ended. All prompts begin with the same --shared-tokens, so that the cache has something to
    find; every run draws new prompts unless --seed is given. TTFT is the time from sending a
    request to its first chunk with content, ITL every gap between two chunks, E2E the time of the
    whole request.

    Example: 200 requests by 16 callers, three quarters of each prompt shared:

        ratoon bench --requests 200 --concurrency 16 --prompt-tokens 1024 --shared-tokens 768

    --workload runs a named workload instead (mixed, tenants, multiturn, ttft-cold, ttft-hot, itl
    or reload) and reports each of its phases.

    The exit status is 1 if no request succeeded.
    """
    url, key = load_target(target)
    seed = secrets.randbits(32) if load.seed is None else load.seed
    model, context = asyncio.run(_served(url, key, target.served_model))
    server = LoadTarget(url, key, model, load.timeout_s)
    if load.workload is not None:
        run_workload(load.workload, server, load, seed, context)
        return
    report = asyncio.run(run_load(server, load, seed))
    print_result(report, show, as_json=load.json)
    if not report.succeeded:
        raise CliError("no request succeeded")


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a workload."""

    workload: str
    phase: str
    report: LoadReport


def run_workload(
    name: WorkloadName, server: LoadTarget, load: LoadFlags, seed: int, context: int | None
) -> None:
    """Run a workload's phases and print each when it has ended: a table, or a line of JSON.

    BadSetting, before a request is sent, if one would be longer than the model's `context`.
    """
    phases = draw_phases(name, SMALL if load.small else WorkloadSizes(), load.vocab, seed)
    needed, failed = longest(phases), []
    if context is not None and needed > context:
        hint = "another workload" if load.small else "--small or another workload"
        raise BadSetting(
            "--workload",
            f"{name} has requests of {needed} tokens, and {server.model} takes {context}: {hint}",
        )
    for phase in phases:
        outcomes, wall_s = drive(phase, server, load.processes)
        report = make_report(outcomes, wall_s, seed)
        if load.json:
            told = PhaseReport(workload=name, phase=phase.name, report=report)
            typer.echo(msgspec.json.encode(told))
        else:
            typer.echo(phase.name)
            show(report)
        failed += [] if report.succeeded else [phase.name]
    if failed:
        raise CliError(f"no request succeeded in {', '.join(failed)}")


async def run_load(server: LoadTarget, load: LoadFlags, seed: int) -> LoadReport:
    """Run the load that the flags describe and report it."""
    bodies = draw_bodies(load, server.model, seed)
    async with load_session(server.timeout_s) as session:
        sender = Sender(session, server.url + PATHS[load.endpoint], server.key)
        with progress_bar("requests", len(bodies)) as advance:
            started_at = time.perf_counter()
            chains, ended = ((body,) for body in bodies), Counted(advance)
            outcomes = await closed_loop(chains, load.concurrency, sender.ask, ended)
            return make_report(outcomes, time.perf_counter() - started_at, seed)


async def _served(url: str, key: str, name: str | None) -> tuple[str, int | None]:
    """The model of this name, or the first one, and its context if the server says it.

    Raises as `AdminClient.call`.
    """
    async with AdminClient(url, key) as client:
        models = await client.rows("/v1/models", "data")
    found = next((one for one in models if one["id"] == name), models[0] if name is None else {})
    return name or str(found["id"]), found.get("max_model_len")


def draw_bodies(load: LoadFlags, model: str, seed: int) -> list[Body]:
    """One body per request; equal flags and seeds give equal bodies."""
    if load.shared_tokens > load.prompt_tokens:
        raise BadSetting(
            "--shared-tokens",
            f"{load.shared_tokens} is more than --prompt-tokens {load.prompt_tokens}",
        )
    rng = random.Random(seed)
    write = _chat if load.endpoint == "chat" else _completion
    shared, own = load.shared_tokens, load.prompt_tokens - load.shared_tokens
    common = stream_body(model, load.output_tokens)
    return [common | prompt for prompt in write(rng, load, shared, own)]


class Counted:
    """A progress bar that also shows how many requests have failed."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._failed = 0

    def __call__(self, outcome: RequestOutcome) -> None:
        """One request has ended."""
        self._failed += outcome.error is not None
        self._advance(1, name=f"requests ({self._failed} failed)" if self._failed else None)


def _completion(rng: random.Random, load: LoadFlags, shared: int, own: int) -> list[Body]:
    def ids(count: int) -> list[int]:
        return [rng.randrange(SPECIAL_IDS, load.vocab) for _ in range(count)]

    head = ids(shared)
    return [{"prompt": head + ids(own)} for _ in range(load.requests)]


def _chat(rng: random.Random, load: LoadFlags, shared: int, own: int) -> list[Body]:
    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    system = [{"role": "system", "content": words(shared)}] if shared else []
    return [
        {"messages": [*system, {"role": "user", "content": words(max(own, 1))}]}
        for _ in range(load.requests)
    ]
