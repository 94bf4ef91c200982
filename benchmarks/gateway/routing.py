"""The costs of routing in a gateway, and of an engine's reports of cached blocks.

    python -m benchmarks.gateway.routing

    `index`     filling the router's index by events of 4,096 blocks, one replica after the other;
                the index's memory
    `small`     events of one block, as decodes make them
    `<who>`     choosing a replica for one request, and noting the choice:
                `nobody` has a block of its prompt, `few` (one in eight) have its beginning,
                `all` have the same half, `ragged`: all have beginnings of different lengths,
                `tiers` is `ragged`, and `alike` is `all`, with a third of the blocks in each tier
    `asked`     as `all`, but a worker asks a router process, one request after the other:
                wall-clock time until the answer; `unasked`: without the process
    `gone`      forgetting a replica
    `turn`      the time that an engine's iteration takes to note, encode and send that 64 sequences
                have each filled a block
    `snapshot`  the time added to an engine's turns by sending all of a large tree

Times are CPU times of the thread, except where the thread waits for another process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer

from benchmarks.gateway.asked_routing import measure_asked
from benchmarks.gateway.fleet import BLOCK_SIZE, PATH, Fleet
from benchmarks.record import emit, progress
from engine.link.cache_events import CacheEvents, EventsTaken, Subscribe
from engine.link.codec import Codec
from engine.queries.cache_feed import CacheFeed
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import KEY_BYTES, block_keys
from prefix_cache.tree.changes import ChangeLog

NODE_BLOCKS = 64
GATEWAY = b"gateway"
IN_TIERS = ("tiers", "alike")


def measure_routing(fleet: Fleet, requests: int) -> None:
    """Print a JSON line for each distribution of the prompt's blocks over replicas."""
    replicas, blocks = len(fleet.names), fleet.prompt_blocks
    ragged = [blocks * (number + 1) // replicas for number in range(replicas)]
    cases: dict[str, list[int]] = {
        "nobody": [0] * replicas,
        "few": [ragged[number] if number % 8 == 0 else 0 for number in range(replicas)],
        "all": [blocks // 2] * replicas,
        "ragged": ragged,
        "tiers": ragged,
        "alike": [blocks // 2] * replicas,
    }
    for case, lengths in cases.items():
        prompt = fleet.keys(blocks)
        for name, length in zip(fleet.names, lengths, strict=True):
            fleet.tell(name, prompt[: KEY_BYTES * length], in_tiers=case in IN_TIERS)
        taken = [1e6 * fleet.route(prompt) for _ in range(requests)]
        p50, p99 = np.percentile(taken, (50, 99)).tolist()
        emit(case, p50_us=p50, p99_us=p99, prompt_tokens=BLOCK_SIZE * blocks, replicas=replicas)


def measure_small(fleet: Fleet, count: int) -> None:
    """Measure reports of single blocks, from one replica after the other."""
    keys = [fleet.keys(1) for _ in range(count)]
    began = time.thread_time()
    for number, key in enumerate(keys):
        fleet.tell(fleet.names[number % len(fleet.names)], key)
    emit("small", events_per_s=count / (time.thread_time() - began))


def large_cache(blocks: int) -> PrefixCache:
    """Create a cache whose tree has `blocks` blocks, in nodes of 64."""
    cache = PrefixCache(num_blocks=blocks, block_size=BLOCK_SIZE)
    for number in range(blocks // NODE_BLOCKS):
        ids = np.full(NODE_BLOCKS * BLOCK_SIZE, number, np.int32)
        lease = cache.acquire(PATH, ids, owner="tn", now=float(number))
        if lease is None:
            break
        cache.commit(lease, ids, len(ids), block_keys(PATH, ids, BLOCK_SIZE), now=float(number))
        cache.release(lease, now=float(number))
    return cache


def measure_turn(turns: int) -> None:
    """Time the additions of a decode step's blocks to the change log, and time their sending."""
    cache, codec, taken = large_cache(NODE_BLOCKS), Codec(), list[float]()
    [node] = cache.tree.nodes()
    edges = [node.edge.split(1) for _ in range(NODE_BLOCKS - 1)]
    feed, log = CacheFeed(cache.tree), ChangeLog()

    def send(_: bytes, events: CacheEvents) -> bool:
        codec.encode(events)
        feed.heard(GATEWAY, EventsTaken(events.number))
        return True

    def turn() -> None:
        for edge in edges:
            log.added(edge)
        feed.publish(send)

    feed.heard(GATEWAY, Subscribe())
    feed.publish(send)
    cache.tree.changes = log
    for _ in range(turns):
        taken.append(1e6 * _timed(turn))
    p50, p99 = np.percentile(taken, (50, 99)).tolist()
    emit("turn", p50_us=p50, p99_us=p99, blocks=len(edges))


def measure_snapshot(blocks: int) -> None:
    """Measure the time to take each piece of a snapshot, without encoding and sending."""
    feed, taken = CacheFeed(large_cache(blocks).tree), list[float]()
    sent: list[CacheEvents] = []

    def send(_: bytes, events: CacheEvents) -> bool:
        sent.append(events)
        return True

    feed.heard(GATEWAY, Subscribe())
    while feed.has_more:
        taken.append(1e3 * _timed(lambda: feed.publish(send)))
        feed.heard(GATEWAY, EventsTaken(sent[-1].number))
    p50 = float(np.percentile(taken, 50))
    emit("snapshot", blocks=blocks, turns=len(taken), p50_ms=p50, max_ms=max(taken))


def _timed(act: Callable[[], object]) -> float:
    began = time.thread_time()
    act()
    return time.thread_time() - began


def _memory_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(
    replicas: Annotated[int, typer.Option(help="Engines.")] = 64,
    blocks: Annotated[int, typer.Option(help="Blocks of all of them together.")] = 10_000_000,
    prompt_tokens: Annotated[int, typer.Option(help="Of each request.")] = 32_768,
    requests: Annotated[int, typer.Option(help="In each case.")] = 1000,
    tree_blocks: Annotated[int, typer.Option(help="Blocks of one engine's tree.")] = 1_000_000,
) -> None:
    """Print a JSON line for each measurement."""
    fleet = Fleet(replicas, prompt_tokens // BLOCK_SIZE)
    progress(f"{blocks:,} blocks at {replicas} replicas")
    before, each = _memory_bytes(), blocks // replicas
    seconds = fleet.fill(each)
    held = _memory_bytes() - before
    emit(
        "index",
        blocks=each * replicas,
        blocks_per_s=each * replicas / seconds,
        memory_mb=held / 1e6,
        bytes_per_block=held / max(each * replicas, 1),
    )
    measure_routing(fleet, requests)
    prompt = fleet.keys(fleet.prompt_blocks)
    for name in fleet.names:
        fleet.tell(name, prompt[: len(prompt) // 2])
    measure_asked(fleet, prompt, requests)
    measure_small(fleet, 10 * requests)
    emit("gone", ms=1e3 * _timed(lambda: fleet.router.gone(fleet.names[0])), blocks=each)
    measure_turn(requests)
    measure_snapshot(tree_blocks)


if __name__ == "__main__":
    typer.run(main)
