"""The time to first token with a published system prompt, compared with a fully shared cache.

    python -m benchmarks.published [--tenants 60] [--system 714] [--question 15]

Many tenants send one request each, one after another, with a common system prompt. The handbook
model runs in this process. With `published`, the system prompt is a pinned, published prefix, and
the question is in the tenant's own namespace. With `all`, all tenants share one namespace. With
`private`, each tenant has its own. The three ways alternate from tenant to tenant, so that other
load affects all of them. Tokens are drawn at random. Times include choosing namespaces and hashing
blocks.
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import typer

from benchmarks.record import emit
from engine.link.event_messages import Tokens
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.link.query_messages import Pin
from gateway.caller import Caller
from gateway.sharing.namespaces import Namespaces, PublishedIndex
from gateway.sharing.published import pinned_tokens
from gateway.state.records import EVERYONE
from prefix_cache.hashing import TokenIds, block_keys
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.shapes import EMBEDDED
from tests.seams.support.real_engine import CLIENT, Bounds, RealEngine

SIZE = 16
BOUNDS = Bounds(
    num_blocks=1024, block_size=SIZE, max_batch_tokens=512, max_running=8, overlap_scheduling=True
)
SECRET = b"s" * 32
FIRST_ID = 300  # lowest drawn token id: smaller ids are special tokens and bytes
VOCABULARY = 2000
SAMPLING = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
WARM_UP = 5  # number of tenants at the beginning whose times are not counted


def publish(engine: RealEngine, namespaces: Namespaces, system: TokenIds) -> None:
    """Pin the system prompt, as when a gateway publishes it."""
    whole = pinned_tokens(system, SIZE)
    namespace = namespaces.published(EVERYONE, engine.fingerprint)
    keys = block_keys(NamespacePath.single(namespace), whole, SIZE)
    ids = pack_token_ids(whole)
    pin = Pin(query_id="q", pin_id="p", token_ids=ids, namespace=namespace, block_keys=keys)
    engine.link.say(pin, CLIENT)
    engine.run()


def first_token(
    engine: RealEngine, namespaces: Namespaces, tenant: str, prompt: TokenIds
) -> tuple[float, int]:
    """Time a tenant's first token, in seconds, and count the request's cached tokens."""
    began = time.perf_counter()
    path = namespaces.path(Caller(tenant, "key"), None, prompt, engine.fingerprint, SIZE)
    request = Generate(
        request_id=tenant,
        token_ids=pack_token_ids(prompt),
        namespaces=path.spans,
        block_keys=block_keys(path, prompt, SIZE),
        flow=tenant,
        sampling=SAMPLING,
    )
    engine.link.say(request, CLIENT)
    while not any(isinstance(event, Tokens) for event in engine.link.events(tenant)):
        engine.core.step()
    seconds = time.perf_counter() - began
    while not engine.core.is_idle:
        engine.core.step()
    return seconds, engine.finished(tenant).reused.tokens


def main(
    tenants: Annotated[int, typer.Option(help="Who ask, one after another.")] = 60,
    system: Annotated[int, typer.Option(help="Tokens of the system prompt.")] = 714,
    question: Annotated[int, typer.Option(help="Tokens of each question.")] = 15,
) -> None:
    """Print a JSON line for each way of sharing."""
    random, engine = np.random.default_rng(0), RealEngine(str(EMBEDDED), BOUNDS)
    prefix = random.integers(FIRST_ID, VOCABULARY, system, np.int32)
    index = PublishedIndex()
    index.renew(SIZE, [(EVERYONE, prefix)])
    ways = [
        ("published", Namespaces(SECRET, published=index)),
        ("all", Namespaces(SECRET, share_all=True)),
        ("private", Namespaces(SECRET)),
    ]
    publish(engine, ways[0][1], prefix)
    answers: dict[str, list[tuple[float, int]]] = {name: [] for name, _ in ways}
    for number in range(tenants + WARM_UP):
        own = random.integers(FIRST_ID, VOCABULARY, question, np.int32)
        # a first token of its own, so that two prompts share only the published prefix
        own[0] = FIRST_ID + number
        turn = number % len(ways)
        for name, namespaces in (*ways[turn:], *ways[:turn]):
            prompt = np.concatenate([prefix, own])
            answers[name].append(first_token(engine, namespaces, f"{name}-{number}", prompt))
    base, _ = np.median(answers["all"][WARM_UP:], axis=0)
    for name, found in answers.items():
        seconds, cached = np.array(found[WARM_UP:]).T
        p50, p95 = np.percentile(seconds, (50, 95)) * 1e3
        times = p50 / 1e3 / base
        emit(
            name,
            ttft_p50_ms=p50,
            ttft_p95_ms=p95,
            times_sharing_all=times,
            cached_tokens=int(np.median(cached)),
        )


if __name__ == "__main__":
    typer.run(main)
