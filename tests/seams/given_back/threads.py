"""Threads of the engine that pass work to each other, with work that fails or takes long.

The threads decide the order of work. So equal seeds give equal work, but not an equal order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random

from engine.errors import InvalidGrammar
from engine.grammars.check import Checked
from engine.grammars.checker import CheckProcess, GrammarChecker
from engine.grammars.compilation import Compilation
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.mask_threads import MaskThreads
from engine.link.messages import Grammar
from engine.sequences.token_constraint import Bitmask, TokenConstraint, WantedMasks
from storage.disk.file.read_write_lock import _PLACES, ReadWriteLock
from tests.doubles.constraints import bitmask
from tests.doubles.waiting import wait_for
from tests.seams.given_back.interleaving import NotGivenBack

LONG_S = 30.0  # time limit in seconds, reached only if a thread hangs
FLOWS = "abc"


class Broken(Exception):
    """The error of failing work."""


class Gate:
    """Work that ends when it is released, perhaps with an error."""

    def __init__(self, random: Random) -> None:
        self.may_end = threading.Event()
        self._breaks = not random.randrange(4)
        if random.randrange(3):
            self.may_end.set()

    def pass_through(self) -> None:
        assert self.may_end.wait(LONG_S)
        if self._breaks:
            raise Broken


class GatedConstraint(TokenConstraint):
    """A constraint that makes its mask once it is released."""

    def __init__(self, flow: str, gate: Gate) -> None:
        self.flow = flow
        self.gate = gate

    def allowed(self) -> Bitmask:
        self.gate.pass_through()
        return bitmask([1], 64)

    def advance(self, token_id: int) -> None:
        """Do nothing, since the mask is always the same."""


def play_masks(seed: int) -> int:
    """Request masks at random, and return their number. Raises NotGivenBack."""
    random = Random(seed)
    num_threads = random.randrange(1, 5)
    masks = MaskThreads(num_threads)
    asked: list[GatedConstraint] = []
    batches = []
    for _ in range(random.randrange(1, 12)):
        new = [
            GatedConstraint(random.choice(FLOWS), Gate(random)) for _ in range(random.randrange(6))
        ]
        wanted = [*new, *random.sample(asked, len(asked) // 2)]
        batches.append(masks.make([WantedMasks(one) for one in wanted]))
        asked += new
        if asked and random.randrange(2):
            random.choice(asked).gate.may_end.set()
        batches[-1].wait(random.choice((0.0, 0.0005)))
    for one in asked:
        one.gate.may_end.set()
    for batch in batches:
        batch.wait(LONG_S)
    _until(lambda: not masks._at_work and not masks._waiting, f"masks of seed {seed}")
    if any(one.is_busy for one in asked) or any(batch.left for batch in batches):
        raise NotGivenBack(f"masks of seed {seed} are never made")
    if len([one for one in masks._threads if one.is_alive()]) < (num_threads if asked else 0):
        raise NotGivenBack(f"threads that make masks have died with seed {seed}")
    masks.close()
    return len(asked)


class GatedChecker(GrammarChecker):
    """A checker that waits for its gate, and then refuses the grammar or fails."""

    def __init__(self, gates: list[Gate], process: CheckProcess) -> None:
        super().__init__(process)
        self._gates = gates

    def check(self, grammar: Grammar) -> Checked:
        self._gates[int(grammar.text)].pass_through()
        raise InvalidGrammar("it is wrong")


def play_compiler(seed: int) -> int:
    """Request grammars at random, and return their number. Raises NotGivenBack."""
    random, gates = Random(seed), list[Gate]()
    compiler = GrammarCompiler(vocabulary=None)  # type: ignore[arg-type]  # none is needed
    compiler._checkers = [GatedChecker(gates, compiler._process) for _ in compiler._checkers]
    asked: list[Compilation] = []
    for number in range(random.randrange(1, 20)):
        gates.append(Gate(random))
        asked.append(compiler.compile(random.choice(FLOWS), Grammar("regex", str(number))))
        if random.randrange(2):
            random.choice(gates).may_end.set()
    for gate in gates:
        gate.may_end.set()
    _until(lambda: all(one.is_done for one in asked), f"grammars of seed {seed}")
    _until(lambda: not compiler._busy and not compiler._waiting, f"flows of seed {seed}")
    if not all(one.is_alive() for one in compiler._threads):
        raise NotGivenBack(f"threads that compile have died with seed {seed}")
    compiler.close()
    return len(asked)


def play_lock(seed: int) -> int:
    """Let threads take a lock shared or alone, and return how often. Raises NotGivenBack."""
    lock, inside = ReadWriteLock(), list[str]()
    wrong: list[str] = []

    def use(way: str, *, breaks: bool) -> None:
        inside.append(way)
        try:
            if "alone" in inside and len(inside) > 1:
                wrong.append(f"{inside}")
            if breaks:
                raise Broken
        finally:
            inside.remove(way)

    def share(random: Random) -> None:
        for _ in range(20):
            way = random.choice(("alone", "shared", "shared", "shared"))
            with suppress(Broken), lock.alone() if way == "alone" else lock.shared():
                use(way, breaks=not random.randrange(6))

    threads = [
        threading.Thread(target=share, args=(Random(seed * 100 + one),), daemon=True)
        for one in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    if wrong or lock._places._value != _PLACES or lock._entrance.locked():
        raise NotGivenBack(f"a lock is not given back, or not kept: {wrong}, seed {seed}")
    return 20 * len(threads)


def _until(is_so: Callable[[], bool], name: str) -> None:
    try:
        wait_for(is_so, LONG_S, every_s=0.0005)
    except TimeoutError:
        raise NotGivenBack(f"{name}: not over after {LONG_S} s") from None
