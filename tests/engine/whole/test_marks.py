"""Marked prefixes in a whole engine: written, read, retained, listed and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from engine.errors import InvalidRequest
from engine.link.event_messages import Tokens
from engine.link.messages import Generate, Mark, SamplingParams, pack_token_ids
from engine.link.query_messages import (
    ForgetMarked,
    ListMarked,
    MarkedForgotten,
    MarkedPrefix,
    MarkedPrefixes,
    Probe,
    Probed,
)
from prefix_cache.namespace import Namespace
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.rig import CLIENT, EOS, NAMESPACE, OTHER, Rig, generate


def marked(request: Generate, *ends: int, seconds: float = 300.0) -> Generate:
    return structs.replace(request, marks=tuple(Mark(end, seconds) for end in ends))


def run(rig: Rig, request: Generate) -> tuple[int, tuple[int, ...]]:
    """Run a request; return the number of tokens read from the cache, and those written under each
    mark.
    """
    rig.submit(request)
    rig.run()
    finished = rig.finished(request.request_id)
    told = [one.reused for one in rig.link.events(request.request_id) if isinstance(one, Tokens)]
    assert told[0] is not None
    assert told[0].written == finished.reused.written
    return finished.reused.tokens, finished.reused.written


def listed(rig: Rig, flow: str = "flow") -> list[MarkedPrefix]:
    rig.link.say(ListMarked(query_id="1", flow=flow))
    rig.step()
    reply = rig.link.sent[CLIENT][-1]
    assert isinstance(reply, MarkedPrefixes)
    return reply.prefixes


def probed(rig: Rig, prompt: Sequence[int], namespace: Namespace = NAMESPACE) -> Probed:
    query = Probe(
        query_id="1", token_ids=pack_token_ids(prompt), namespaces=((0, bytes(namespace)),)
    )
    rig.link.say(query)
    rig.step()
    reply = rig.link.sent[CLIENT][-1]
    assert isinstance(reply, Probed)
    return reply


def test_what_is_marked_is_written_once_and_then_read() -> None:
    rig = Rig()
    assert run(rig, marked(generate("a", range(20)), 9, 17)) == (0, (8, 8))
    assert run(rig, marked(generate("b", range(20)), 9, 17)) == (19, (0, 0))
    longer = [*range(17), *range(40, 50)]
    assert run(rig, marked(generate("c", longer), 9, 25)) == (17, (0, 7)), "3 of a block are read"
    assert run(rig, generate("d", longer)) == (26, ())
    rig.expect_nothing_left()


def test_a_request_that_ends_with_its_first_token_says_what_it_wrote() -> None:
    rig = Rig()
    prompt = [5] * 12
    [first] = expected_output(prompt, 1)
    sampling = SamplingParams(max_tokens=4, stop_token_ids=frozenset((first, EOS)))
    rig.submit(marked(generate("a", prompt, sampling=sampling), 8))
    rig.run()
    assert rig.finished("a").reason == "stop"
    assert rig.finished("a").reused.written == (8,)


def test_a_prompt_alone_says_what_it_wrote() -> None:
    rig = Rig()
    request = marked(generate("a", range(10), sampling=SamplingParams(max_tokens=0)), 10)
    rig.submit(request)
    rig.run()
    assert rig.finished("a").reused.written == (8,)
    assert [prefix.tokens for prefix in listed(rig)] == [8]


def test_without_the_cache_nothing_is_written_or_listed() -> None:
    rig = Rig()
    assert run(rig, marked(generate("a", range(20), use_cache=False), 16)) == (0, (0,))
    assert listed(rig) == []


def test_marked_prefixes_are_listed_by_flow_and_outlive_others() -> None:
    rig = Rig(num_blocks=16, block_size=4)
    run(rig, marked(generate("kept", range(20), max_tokens=1), 16))
    run(rig, generate("plain", range(40, 60), max_tokens=1))
    for number in range(2, 6):
        run(rig, generate(f"{number}", [number * 7] * 21, max_tokens=1))
    assert probed(rig, range(40, 60)).tiers.total == 0, "the control"
    assert probed(rig, range(20)).tiers.total >= 16
    [one] = listed(rig)
    assert (one.tokens, one.tiers.total, one.seconds) == (16, 16, 300.0)
    assert listed(rig, "another") == []


def test_a_probe_says_what_a_request_would_find_and_nothing_of_other_namespaces() -> None:
    rig = Rig()
    run(rig, generate("a", range(20)))
    longer = [*range(18), 50, 51, 52]
    assert probed(rig, longer).tiers.total == 18
    assert probed(rig, longer, OTHER).tiers.total == 0
    assert run(rig, generate("b", longer))[0] == 18
    assert probed(rig, []).tiers.total == 0


def test_a_probe_that_is_no_prompt_is_refused() -> None:
    rig = Rig()
    rig.link.say(Probe(query_id="1", token_ids=b"abc", namespaces=((0, bytes(16)),)))
    rig.link.say(Probe(query_id="2", token_ids=b"", namespaces=((3, b"x"),)))
    rig.step()
    codes = [one.code for one in rig.link.sent[CLIENT] if isinstance(one, Probed)]
    assert codes == [InvalidRequest.code] * 2


def test_a_flow_forgets_its_own_prefixes_alone() -> None:
    rig = Rig()
    run(rig, marked(generate("a", range(20)), 16))
    [one] = listed(rig)
    for flow in ("another", "flow", "flow"):
        rig.link.say(ForgetMarked(query_id=flow, flow=flow, prefix_id=one.prefix_id))
    rig.step()
    replies = [one for one in rig.link.sent[CLIENT] if isinstance(one, MarkedForgotten)]
    assert [reply.blocks is None for reply in replies] == [True, False, True]
    assert (replies[1].blocks or 0) >= 4
    assert probed(rig, range(20)).tiers.total == 0


@pytest.mark.parametrize(
    "marks",
    [
        (Mark(21, 300.0),),
        (Mark(-1, 300.0),),
        (Mark(8, 300.0), Mark(4, 300.0)),
        (Mark(8, 0.0),),
        (Mark(8, float("nan")),),
        (Mark(8, 1e9),),
        (Mark(8, 300.0),) * 9,
    ],
)
def test_marks_that_cannot_be_are_refused(marks: tuple[Mark, ...]) -> None:
    rig = Rig()
    rig.submit(structs.replace(generate("a", range(20)), marks=marks))
    rig.run()
    assert rig.failed("a").code == InvalidRequest.code
