"""The whole engine's order reveals to a spy nothing about a victim's cached prompts.

A spy asks for its guess of the victim's prompt among its own dummies, while the victim and a
bystander ask too. The spy sees the order of its answers. The times of its answers may differ: with
more cached tokens, all answers end sooner.
"""

from __future__ import annotations

import random

from engine.link.event_messages import StepReply, Tokens
from prefix_cache.namespace import Namespace
from tests.engine.rigs.rig import CLIENT, Rig, generate

SEEDS = range(20)
LENGTH = 32  # number of a prompt's tokens, half of them in the last blocks
GUESS = 0


def prompts(seed: int, kind: str) -> list[list[int]]:
    drawn = random.Random(f"{seed} {kind}")
    return [[drawn.randrange(1, 60) for _ in range(LENGTH)] for _ in range(8)]


class Scene:
    """A victim that has asked for the secret or for something else; then all tenants ask at
    once.
    """

    def __init__(self, seed: int, *, hit: bool, shared: bool) -> None:
        self.rig = Rig(
            num_blocks=2000, max_running=4, max_batch_tokens=48, quantum=32, check_every=50
        )
        self.shared = shared
        self.secret, self.other = prompts(seed, "secret")[:2]
        self.mine = prompts(seed, "spy")
        self._before(hit)
        self._at_once(random.Random(seed))

    def order(self) -> list[str]:
        """Return the spy's requests, in the order of their first tokens."""
        first: dict[str, None] = {}
        steps = (m for m in self.rig.link.sent[CLIENT] if isinstance(m, StepReply))
        for event in (event for step in steps for event in step.events):
            if isinstance(event, Tokens) and event.request_id.startswith("spy "):
                first.setdefault(event.request_id)
        return [*first]

    def _before(self, hit: bool) -> None:
        self._ask("victim", "before", self.secret if hit else self.other)
        for number in (2, 5):  # positive control: the order follows the spy's own cached prompts
            self._ask("spy-", f"before {number}", self.mine[number])
        self.rig.run()

    def _at_once(self, drawn: random.Random) -> None:
        asks = [("spy", str(n), p) for n, p in enumerate([self.secret, *self.mine[1:]])]
        asks += [("victim", str(n), [*self.secret[:16], *range(1, 17)]) for n in range(6)]
        asks += [("bystander", str(n), p) for n, p in enumerate(prompts(1, "bystander"))]
        drawn.shuffle(asks)
        for who, name, prompt in asks:
            self._ask(who, name, prompt)
        self.rig.run()

    def _ask(self, who: str, name: str, prompt: list[int]) -> None:
        tenant = who.rstrip("-")
        flow = "all" if self.shared else tenant
        self.rig.submit(
            generate(
                f"{who} {name}",
                prompt,
                max_tokens=3,
                flow=flow,
                namespace=Namespace(flow.encode().ljust(16, b".")),
            )
        )


def orders(hit: bool, *, shared: bool) -> list[list[str]]:
    return [Scene(seed, hit=hit, shared=shared).order() for seed in SEEDS]


def test_a_spys_requests_come_in_the_same_order_whatever_the_victim_has_cached() -> None:
    assert orders(True, shared=False) == orders(False, shared=False)


def test_control_the_spys_own_cached_prompts_do_come_sooner() -> None:
    """Cache prompts of the spy itself (positive control): these do start sooner."""
    places = [order.index("spy 2") + order.index("spy 5") for order in orders(True, shared=False)]
    # The sum of two positions is between 0 + 1 and 6 + 7. Without a cache, its mean is 7.
    assert sum(places) / len(places) < 4


def test_where_all_is_shared_the_guess_comes_sooner_if_it_is_right() -> None:
    """Share one namespace and one flow (positive control): the order then reveals the guess."""

    def mean(found: list[list[str]]) -> float:
        return sum(order.index(f"spy {GUESS}") for order in found) / len(found)

    assert mean(orders(False, shared=True)) - mean(orders(True, shared=True)) > 1
