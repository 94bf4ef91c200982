"""Sharing, chunks, preemption, eviction and cancels never change a request's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine.link.messages import Cancel
from prefix_cache.names import PolicyName
from prefix_cache.namespace import Namespace
from tests.doubles.engine.fake_runner import expected_output
from tests.engine.rigs.rig import Rig, generate

LAST = 20  # the last step at which a request may arrive
NAMESPACES = [Namespace(b"a" * 16), Namespace(b"b" * 16)]


@dataclass(frozen=True)
class Request:
    """A random request: when it arrives, its shared prefix, and when its client leaves."""

    at_step: int
    shared: int  # number of tokens of the common prefix
    private: tuple[int, ...]
    max_tokens: int
    namespace: Namespace
    flow: str
    use_cache: bool
    cancel_after: int | None

    def prompt(self, common: list[int]) -> list[int]:
        return common[: self.shared] + list(self.private)


any_request = st.builds(
    Request,
    at_step=st.integers(0, LAST),
    shared=st.integers(1, 24),
    private=st.lists(st.integers(0, 2), max_size=8).map(tuple),
    max_tokens=st.integers(1, 16),
    namespace=st.sampled_from(NAMESPACES),
    flow=st.sampled_from(["x", "y", "z"]),
    use_cache=st.integers(0, 5).map(bool),
    cancel_after=st.none() | st.integers(0, 30),
)


@st.composite
def rigs(draw: st.DrawFn) -> Rig:
    block_size = draw(st.sampled_from([1, 2, 4]))
    max_running = draw(st.integers(1, 6))
    longest = 24 + 8 + 16
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    return Rig(
        block_size=block_size,
        # at least the blocks of the longest request, but so few that they usually run short
        num_blocks=-(-longest // block_size) + draw(st.integers(0, 40)),
        max_running=max_running,
        max_batch_tokens=max_running + draw(st.integers(0, 20)),
        deadline_s=draw(st.sampled_from([0.0, 0.005, 10.0])),
        quantum=draw(st.sampled_from([1, 16, 256])),
        overlap_scheduling=draw(st.booleans()),
        stages=stages,
        num_states=draw(st.sampled_from([0, 6, 12, 60])) if stages == 1 else 0,
        policy=draw(st.sampled_from(get_args(PolicyName))),
    )


@given(rig=rigs(), mix=st.lists(any_request, min_size=1, max_size=12), base=st.integers(1, 3))
def test_any_mix_gives_the_tokens_of_each_alone(rig: Rig, mix: list[Request], base: int) -> None:
    common = [(i * base) % 3 for i in range(24)]
    cancels: dict[int, list[str]] = {}
    for step in range(60):
        for number, request in enumerate(mix):
            if request.at_step == step:
                rig.submit(
                    generate(
                        str(number),
                        request.prompt(common),
                        max_tokens=request.max_tokens,
                        flow=request.flow,
                        namespace=request.namespace,
                        use_cache=request.use_cache,
                        block_size=rig.block_size,
                    )
                )
                if request.cancel_after is not None:
                    cancels.setdefault(step + request.cancel_after, []).append(str(number))
        gone = cancels.pop(step, [])
        for request_id in gone:
            rig.link.say(Cancel(request_id))
        if gone or step <= LAST or not rig.core.is_idle:
            rig.step()
    rig.run()
    for number, request in enumerate(mix):
        expected = expected_output(request.prompt(common), request.max_tokens)
        tokens = rig.link.tokens(str(number))
        last = rig.finished(str(number))
        assert tokens == expected[: len(tokens)]
        assert last.completion_tokens == len(tokens)
        assert last.reused.tokens <= last.prompt_tokens == len(request.prompt(common))
        assert last.reason == "length" or request.cancel_after is not None
        if last.reason == "length":
            assert tokens == expected
    pending = any(row.is_pending for step in rig.runner.steps for row in step.rows)
    assert not pending or rig.stages == 1
    rig.expect_nothing_left()


def test_with_block_keys_that_are_all_the_same_every_output_is_right() -> None:
    """Give all blocks one key: keys only suggest blocks, so collisions cost time but change no
    output.
    """
    rig = Rig(num_blocks=64, max_batch_tokens=32, deadline_s=0.02)
    requests = [
        msgspec.structs.replace(
            generate(str(n), [n % 3, *range(12), n, n], max_tokens=6), block_keys=bytes(16 * 3)
        )
        for n in range(12)
    ]
    for request in requests:
        rig.submit(request)
    rig.run()
    for request in requests:
        rig.expect_output(request)
    assert rig.core.stats().windows["all"].hit_tokens > 0
    rig.expect_nothing_left()
