"""Blocks that were flushed lately are not fetched. Many flushes of one flow become a single one."""

from __future__ import annotations

from engine.exchange.fetching.recent_flushes import MOST, FlushScope, RecentFlushes
from engine.sequences.sequence import Sequence
from prefix_cache.namespace import Namespace, NamespacePath
from tests.engine.rigs.sequences import waiting

SECONDS = 10.0


def sequence(flow: str, namespace: bytes = b"other") -> Sequence:
    made = waiting("a", flow=flow)
    made.path = NamespacePath.single(Namespace(namespace.ljust(16, b".")))
    return made


def flushed(*scopes: FlushScope) -> RecentFlushes:
    recent = RecentFlushes(SECONDS)
    for scope in scopes:
        recent.add(scope, 0.0)
    return recent


def test_a_flush_covers_its_flow_and_its_namespaces_for_a_while() -> None:
    recent = flushed(FlushScope("ann", b"schema"), FlushScope(None, b"shared"))
    covered = [sequence("ann", b"schema 1"), sequence("ben", b"shared 1")]
    others = [sequence("ann"), sequence("ben", b"schema 1")]
    assert [recent.covers(one, 9.0) for one in (*covered, *others)] == [True, True, False, False]
    assert not any(recent.covers(one, SECONDS) for one in covered)


def test_more_than_a_few_flushes_of_a_flow_cover_the_whole_flow_and_no_other() -> None:
    scopes = [FlushScope("ann", b"schema %d" % number) for number in range(MOST + 1)]
    assert not flushed(*scopes[:MOST]).covers(sequence("ann"), 0.0)
    recent = flushed(*scopes)
    assert recent.covers(sequence("ann"), 9.0)
    assert not recent.covers(sequence("ben"), 0.0)
    assert not recent.covers(sequence("ann"), SECONDS)
