"""The paired test: the same tokens asked by one who may find them and one who may not.

    device      first, first again, other, first once more
    host, disk  first, first again | everything is pushed down | other, first again
    evicted     first, forgotten, first, first again, other
    restarted   first, first again | the operator restarts | other, first again

Below the device the other asks before the control, since that brings the blocks back up.

Knows: the order of requests in a cell. Does not know: which cells there are (`plan`), or what
readings mean (`findings`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cli.errors import ServerRefused
from cli.isolation.asking import Asker, Prompt, Reading
from cli.isolation.cast import Cast, Stage
from cli.isolation.findings import Finding, Outcome, Readings, inconclusive, judged
from cli.isolation.plan import Cell, Side
from cli.isolation.pressure import NotReached, Pressure

Advance = Callable[[], None]
_PROMPT_BLOCKS = 4.5
_TRIES = 3


class Seed(msgspec.Struct, frozen=True):
    """What the first of a cell has asked; it goes into the file of a run that will go on."""

    cell: int
    cast: Cast
    prompt: Prompt
    cold: Reading


class PairedTest:
    """Runs cells against one server."""

    def __init__(self, asker: Asker, stage: Stage, block_size: int) -> None:
        self._asker = asker
        self._stage = stage
        self._block_size = block_size
        self.prompt_tokens = int(_PROMPT_BLOCKS * block_size)

    async def on_device(self, cell: Cell) -> Finding:
        """A cell whose blocks stay where they were computed."""
        return await self._with_cast(cell, self._on_device)

    async def after_eviction(self, cell: Cell) -> Finding:
        """A cell whose blocks were forgotten and computed anew."""
        return await self._with_cast(cell, self._after_eviction)

    async def pushed_down(
        self, cells: Sequence[Cell], pressure: Pressure, advance: Advance
    ) -> list[Finding]:
        """Cells of one lower tier, few enough to lie there together; each tried thrice at most."""
        done: list[Finding] = []
        left = list(cells)
        for last in (*(False,) * (_TRIES - 1), True):
            findings = await self._push_once(left, pressure)
            again = [
                cell
                for cell, finding in zip(left, findings, strict=True)
                if finding.outcome is Outcome.INCONCLUSIVE and not last
            ]
            for cell, finding in zip(left, findings, strict=True):
                if cell not in again:
                    advance()
                    done.append(finding)
            left = again
            if not left:
                break
        return done

    async def seed(self, cell: Cell, number: int) -> Seed:
        """The first asks twice: blocks that were reused once are worth a place on disk."""
        cast = await self._stage.enter(cell.case)
        prompt = await self._asker.fresh_prompt(cast.first.key, self.prompt_tokens)
        cold = await self._ask(cell, cast, cell.case.asker, prompt)
        await self._ask(cell, cast, cell.case.asker, prompt)
        return Seed(number, cast, prompt, cold)

    async def harvest(self, cell: Cell, seed: Seed) -> Finding:
        """The other asks, then the first again; the cast goes."""
        other, refused = await self._other(cell, seed.cast, seed.prompt)
        control = await self._ask(cell, seed.cast, cell.case.asker, seed.prompt)
        await self._stage.leave(seed.cast)
        readings = Readings(cold=seed.cold, control=control, other=other, refused=refused)
        return judged(cell, readings, self._block_size)

    async def _push_once(self, cells: Sequence[Cell], pressure: Pressure) -> list[Finding]:
        await pressure.begin(self.prompt_tokens)
        seeds = [await self.seed(cell, number) for number, cell in enumerate(cells)]
        try:
            await pressure.push(cells[0].tier)
        except NotReached as error:
            for seed in seeds:
                await self._stage.leave(seed.cast)
            return [inconclusive(cell, str(error)) for cell in cells]
        return [await self.harvest(cells[seed.cell], seed) for seed in seeds]

    async def _with_cast(self, cell: Cell, run: Any) -> Finding:
        for last in (*(False,) * (_TRIES - 1), True):
            cast = await self._stage.enter(cell.case)
            prompt = await self._asker.fresh_prompt(cast.first.key, self.prompt_tokens)
            finding = judged(cell, await run(cell, cast, prompt), self._block_size)
            await self._stage.leave(cast)
            if finding.outcome is not Outcome.INCONCLUSIVE or last:
                break
        return finding

    async def _on_device(self, cell: Cell, cast: Cast, prompt: Prompt) -> Readings:
        cold = await self._ask(cell, cast, cell.case.asker, prompt)
        control = await self._ask(cell, cast, cell.case.asker, prompt)
        other, refused = await self._other(cell, cast, prompt)
        after = await self._ask(cell, cast, cell.case.asker, prompt)
        return Readings(cold=cold, control=control, other=other, refused=refused, after=after)

    async def _after_eviction(self, cell: Cell, cast: Cast, prompt: Prompt) -> Readings:
        await self._ask(cell, cast, cell.case.asker, prompt)
        await self._stage.forget(cast)
        anew = await self._ask(cell, cast, cell.case.asker, prompt)
        control = await self._ask(cell, cast, cell.case.asker, prompt)
        other, refused = await self._other(cell, cast, prompt)
        forgotten = not anew.is_full(self._block_size)  # else it shows nothing
        return Readings(
            cold=anew, control=control if forgotten else None, other=other, refused=refused
        )

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
