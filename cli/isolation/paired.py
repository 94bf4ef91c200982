"""The paired test: the same tokens are asked by one who may find them and one who may not.

    device      first, first again, other, first once more
    host, disk  first, first again | everything is pushed down | other, first again
    evicted     first, forgotten, first, first again, other
    restarted   first, first again | the operator restarts | other, first again

Below the device the other asks before the control, because the control brings the blocks back up.

Knows: the order of requests in a cell. Does not know: which cells there are (`cells`), or what
readings mean (`findings`).
"""

from __future__ import annotations

import msgspec

from cli.errors import ServerRefused
from cli.isolation.asking import Asker, Prompt, Reading
from cli.isolation.cast import Cast, Stage
from cli.isolation.cells import Cell, Side, Tier
from cli.isolation.findings import Finding, Outcome, Readings, inconclusive, judged
from cli.isolation.pressure import NotReached, Pressure

_PROMPT_BLOCKS = 4.5
_TEMPLATE_BLOCKS = 2  # what a chat's template and the last words may add
_TRIES = 3
_CONFLICT = 409


class Seed(msgspec.Struct, frozen=True):
    """What the first tenant of a cell has asked; kept in the file of a run over a restart."""

    cell: int
    cast: Cast
    prompt: Prompt
    cold: Reading


class PairedTest:
    """Runs cells against one server."""

    def __init__(self, asker: Asker, stage: Stage, pressure: Pressure, block_size: int) -> None:
        self._asker = asker
        self._stage = stage
        self._pressure = pressure
        self._block_size = block_size
        self._prompt_tokens = int(_PROMPT_BLOCKS * block_size)
        self._most_tokens = self._prompt_tokens + _TEMPLATE_BLOCKS * block_size

    async def run(self, cell: Cell) -> Finding:
        """Test a cell that needs no restart; up to three times while it is inconclusive."""
        for _ in range(_TRIES):
            finding = await self._once(cell)
            if finding.outcome is not Outcome.INCONCLUSIVE:
                break
        return finding

    async def seed(self, cell: Cell, number: int, ceiling: float = 1.0) -> Seed:
        """The first tenant asks twice: only blocks that were reused are written to disk."""
        cast, prompt = await self._enter(cell, ceiling)
        cold = await self._ask(cell, cast, cell.case.asker, prompt)
        await self._ask(cell, cast, cell.case.asker, prompt)
        return Seed(number, cast, prompt, cold)

    async def harvest(self, cell: Cell, seed: Seed) -> Finding:
        """The other asks, then the first again; the cast is removed."""
        await self._stage.warm(seed.cast)
        other, refused = await self._other(cell, seed.cast, seed.prompt)
        control = await self._ask(cell, seed.cast, cell.case.asker, seed.prompt)
        await self._stage.leave(seed.cast)
        readings = Readings(
            cold=seed.cold,
            control=control,
            other=other,
            refused=refused,
            published=seed.cast.published,
        )
        return judged(cell, readings, self._block_size)

    async def _once(self, cell: Cell) -> Finding:
        try:
            if cell.tier in (Tier.HOST, Tier.DISK):
                return await self._pushed_down(cell)
            return await self._on_device(cell)
        except NotReached as error:
            return inconclusive(cell, str(error))
        except ServerRefused as refusal:
            if cell.case.publishes is None or refusal.status != _CONFLICT:
                raise
            return inconclusive(cell, str(refusal))  # no room for another published prefix

    async def _pushed_down(self, cell: Cell) -> Finding:
        ceiling = self._pressure.ceiling(cell.tier, self._most_tokens)
        seed = await self.seed(cell, 0, ceiling)
        await self._pressure.push(cell.tier, seed.cast.first.key, self._most_tokens)
        return await self.harvest(cell, seed)

    async def _on_device(self, cell: Cell) -> Finding:
        cast, prompt = await self._enter(cell)
        cold = await self._ask(cell, cast, cell.case.asker, prompt)
        shows = True
        if cell.tier is Tier.EVICTED:
            await self._stage.forget(cast)
            cold = await self._ask(cell, cast, cell.case.asker, prompt)
            shows = not cold.is_full(self._block_size)  # else nothing was forgotten
        control = await self._ask(cell, cast, cell.case.asker, prompt)
        other, refused = await self._other(cell, cast, prompt)
        after = await self._ask(cell, cast, cell.case.asker, prompt)
        await self._stage.leave(cast)
        readings = Readings(
            cold=cold,
            control=control if shows else None,
            other=other,
            refused=refused,
            after=after,
            published=cast.published,
        )
        return judged(cell, readings, self._block_size)

    async def _enter(self, cell: Cell, ceiling: float = 1.0) -> tuple[Cast, Prompt]:
        """Create a cast and its prompt, with a published beginning if the case needs one."""
        cast = await self._stage.enter(cell.case, ceiling)
        key = cast.first.key
        prompt = await self._asker.fresh_prompt(key, self._prompt_tokens)
        if cell.case.publishes is None:
            return cast, prompt
        cast = await self._stage.publish(cast, cell.case, cell.entry.kind, prompt.text)
        return cast, await self._asker.behind(key, prompt.text, self._prompt_tokens)

    async def _ask(self, cell: Cell, cast: Cast, side: Side, prompt: Prompt) -> Reading:
        return await self._asker.ask(cast.key(side), cell.entry, prompt, cast.fields(side))

    async def _other(
        self, cell: Cell, cast: Cast, prompt: Prompt
    ) -> tuple[Reading | None, int | None]:
        if cell.case.leaves:
            await self._stage.second_leaves(cast)
        try:
            return await self._ask(cell, cast, cell.case.other, prompt), None
        except ServerRefused as refusal:
            if refusal.status == 400 and cell.case.expected == "nothing or refused":
                return None, refusal.status
            raise
