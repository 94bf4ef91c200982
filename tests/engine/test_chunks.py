"""Whose prompts get which tokens of a step, and what counts as a flood."""

from __future__ import annotations

from engine.chunks import OLDESTS_PART, Chunks
from engine.crowd import FEW_FLOWS, MANY_REQUESTS, is_flood
from engine.draft import Draft
from engine.queue import FairQueue, QueueLimits
from engine.sequence import Sequence
from tests.engine.sequences import waiting

BUDGET = 400


class Scene:
    """Sequences that run, in order of arrival, and some that wait."""

    def __init__(self, *running: tuple[str, int], waits: tuple[str, ...] = ()) -> None:
        self.queue = FairQueue(QueueLimits())
        for number, flow in enumerate(waits):
            self.queue.push(waiting(f"waits{number}", flow=flow))
        self.running = [
            waiting(f"{flow}{number}", flow=flow, prompt_len=length)
            for number, (flow, length) in enumerate(running)
        ]
        self.chunks = Chunks(self.queue)
        self.draft = Draft(BUDGET)

    def shape(self) -> list[tuple[str, int]]:
        return [(row.sequence.request_id, row.num_new) for row in self.draft.rows]


def test_prompts_of_one_flow_go_in_order_of_arrival() -> None:
    scene = Scene(("a", 300), ("a", 300))
    scene.chunks.go_on(scene.draft, scene.running)
    assert scene.shape() == [("a0", 300), ("a1", 100)]


def test_flows_with_few_requests_go_first_but_leave_the_oldest_its_part() -> None:
    scene = Scene(("many", 1000), ("many", 1000), ("few", 1000))
    scene.chunks.go_on(scene.draft, scene.running)
    part = BUDGET // OLDESTS_PART
    assert scene.shape() == [("few2", BUDGET - part), ("many0", part)]


def test_the_oldest_is_computed_whole_while_new_flows_keep_coming() -> None:
    scene = Scene(("many", 1000), ("many", 1000))
    oldest = scene.running[0]
    for number in range(10 * OLDESTS_PART):
        if oldest.num_computed == oldest.prompt_len:
            break
        newest = waiting(f"new{number}", flow=f"flow{number}", prompt_len=BUDGET)
        draft = Draft(BUDGET)
        for row in scene.chunks.go_on(draft, [*scene.running, newest]):
            row.sequence.num_computed = row.end
    assert oldest.num_computed == oldest.prompt_len


def test_tokens_that_the_first_do_not_need_go_to_the_oldest() -> None:
    scene = Scene(("many", 1000), ("many", 1000), ("few", 50))
    scene.chunks.go_on(scene.draft, scene.running)
    assert sum(tokens for _, tokens in scene.shape()) == BUDGET


def test_half_is_kept_while_a_flow_without_a_chunk_waits() -> None:
    scene = Scene(("a", 1000), waits=("b",))
    rows = scene.chunks.go_on(scene.draft, scene.running)
    assert scene.shape() == [("a0", BUDGET // 2)]
    scene.chunks.top_up(scene.draft, rows)
    assert scene.shape() == [("a0", BUDGET)]


def test_nothing_is_kept_for_more_of_the_same_flow() -> None:
    scene = Scene(("a", 1000), waits=("a",))
    scene.chunks.go_on(scene.draft, scene.running)
    assert scene.shape() == [("a0", BUDGET)]


def test_a_sequence_that_decodes_gets_no_chunk() -> None:
    scene = Scene(("a", 8))
    scene.running[0].num_computed = 7
    assert scene.chunks.go_on(scene.draft, scene.running) == []


def test_few_flows_are_a_flood_and_so_are_many_requests_of_each() -> None:
    assert is_flood(FEW_FLOWS, FEW_FLOWS)
    assert not is_flood(FEW_FLOWS + 1, FEW_FLOWS + 1)
    assert not is_flood(16, 16 * MANY_REQUESTS)
    assert is_flood(16, 16 * MANY_REQUESTS + 1)


def test_a_flood_counts_waiting_and_begun_prompts_but_not_computed_ones() -> None:
    flows = [f"f{number}" for number in range(FEW_FLOWS + 1)]
    few: list[tuple[str, int]] = [(flow, 100) for flow in flows]
    assert not Scene(*few).chunks.are_a_flood(Scene(*few).running)
    waits = tuple(flow for flow in flows for _ in range(MANY_REQUESTS))
    crowded = Scene(*few, waits=waits)
    assert crowded.chunks.are_a_flood(crowded.running)
    done: list[Sequence] = crowded.running
    for one in done:
        one.num_computed = one.prompt_len
    assert not crowded.chunks.are_a_flood(done)


def test_whether_others_wait_looks_at_running_and_queued_prompts() -> None:
    scene = Scene(("a", 100), ("b", 100))
    assert scene.chunks.wait(scene.running, besides=[])
    assert scene.chunks.wait(scene.running, besides=scene.running[:1])
    assert not scene.chunks.wait(scene.running, besides=scene.running)
    queued = Scene(("a", 100), waits=("b",))
    assert queued.chunks.wait(queued.running, besides=queued.running)
