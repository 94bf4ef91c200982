"""The paired test: two tenants send the same tokens, and only the first may find them cached.

    1. The first tenant sends its prompt twice, as only reused blocks are written to disk. With
       recurrent layers it sends the prompt three times: a state is kept at the second request and
       reused at the third.
    2. The prompt's blocks are brought to the cell's tier: pushed down to host or disk, flushed and
       computed again (evicted), or saved over a restart.
    3. The control is the prompt sent again by the first tenant. On the device, and after eviction,
       the control comes first and the other tenant's request second. In other tiers the other
       tenant comes first, because the control loads the blocks to the device.

Each tenant keeps its share of each tier, so other tenants' prompts do not push its blocks down. A
ceiling on the tenant itself pushes them down. The tiers above the wanted tier then hold only a few
of the tenant's prompts, and the wanted tier holds several. Few prompts are enough for a server of
any size, and no other tenant loses blocks.
"""

import asyncio
import math
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from cli.echo import echo
from cli.errors import ServerRefused
from cli.isolation.cases import IDS, Cell, TierCase, cells_of
from cli.isolation.fixtures import HEAVY, LIGHT, Fixture, Fixtures, flush, until_warm, weigh
from cli.isolation.reading import Reading
from cli.isolation.server import ServerFacts, ServerUnderTest
from cli.isolation.verdict import Finding, Outcome, judged, untested
from cli.operating.admin_client import TENANTS
from cli.progress import progress_lines

_PROMPT_BLOCKS = 4.5
_TEMPLATE_BLOCKS = 2
_TRIES = 3
_OVER_S = 2.0  # seconds by which a cell may exceed its time limit
_BAD_REQUEST, _CONFLICT = 400, 409
# numbers of prompts that fit under the ceiling in the wanted tier, and in faster tiers
_KEPT, _ON_THE_WAY = 3, 2
# A request with prompt modules counts as a prompt of this many times the length, because a tenant's
# part of the device must hold all modules of a request and the request's own tokens.
_WITH_MODULES = 2
_ORDER = (TierCase.DEVICE, TierCase.HOST, TierCase.DISK)
_PIECES = 4
_NO_MODULES = "the model serves no prompt modules"
# The ratio of all recurrent-state slots on the device to the slots that tenants share: the first
# guess, and the maximum.
_SLOTS_A_STATE, _MOST_SLOTS_A_STATE = 2, 8


@dataclass(frozen=True, slots=True)
class Squeeze:
    """A tenant's ceiling, and the number of filling tokens, that push its prompt into a tier."""

    ceiling: float
    fill_tokens: int


class NotReached(Exception):
    """A failure to bring a prompt's KV blocks to the tier of a test."""


class PairedTest:
    """The paired test, which runs cells against one server."""

    def __init__(self, server: ServerUnderTest, max_fill_tokens: int, *, each_entry: bool) -> None:
        self._server = server
        self._admin = server.admin
        self._block_size = server.facts.block_size
        self._prompt_tokens = int(_PROMPT_BLOCKS * self._block_size)
        self._most_tokens = self._prompt_tokens + _TEMPLATE_BLOCKS * self._block_size
        self._max_fill_tokens = max_fill_tokens
        self._each_entry = each_entry
        self._slots_a_state = _SLOTS_A_STATE

    async def in_tier(self, tier: TierCase, until: float = math.inf) -> list[Finding]:
        """Test all cells of a tier that needs no restart.

        An inconclusive cell is tested up to three times. A cell is left out if it has not begun at
        `until` (`time.monotonic()`), or ends more than `_OVER_S` seconds later.
        """
        cells, findings = cells_of(tier, each_entry=self._each_entry), list[Finding]()
        if tier in (TierCase.HOST, TierCase.DISK) and tier not in self._server.facts.tier_tokens:
            return [untested(cell, Outcome.NOT_APPLICABLE, f"no {tier} tier") for cell in cells]
        with progress_lines(f"paired, {tier}", len(cells)) as advance:
            for cell in cells:
                findings.append(await self._within(cell, until))
                advance(1)
        return findings

    async def _within(self, cell: Cell, until: float) -> Finding:
        if not self._applies(cell):
            return untested(cell, Outcome.NOT_APPLICABLE, _NO_MODULES)
        left = until - time.monotonic()
        if left <= 0:
            return untested(cell, Outcome.LEFT_OUT, "there was no time")
        try:
            async with asyncio.timeout(None if math.isinf(left) else left + _OVER_S):
                finding, tries = await self._once(cell), 1
                while finding.outcome is Outcome.INCONCLUSIVE and tries < _TRIES:
                    self._slots_a_state = min(2 * self._slots_a_state, _MOST_SLOTS_A_STATE)
                    finding, tries = await self._once(cell), tries + 1
        except TimeoutError:
            return untested(cell, Outcome.LEFT_OUT, "it did not end in time")
        return finding

    async def over_restart(self) -> list[Finding]:
        """Prepare all cells, ask for a restart, wait for it, and compare the cells."""
        cells = cells_of(TierCase.RESTARTED, each_entry=self._each_entry)
        prepared, findings = list[Fixture | Finding](), list[Finding]()
        async with AsyncExitStack() as stack:
            with progress_lines("before a restart", len(cells)) as advance:
                for cell in cells:
                    prepared.append(await self._saved(cell, stack, len(cells)))
                    advance(1)
            echo("Restart the server now; the test goes on when it is back.", err=True)
            await self._server.restarted()
            with progress_lines("after the restart", len(cells)) as advance:
                for one in prepared:
                    if isinstance(one, Fixture):
                        one = await self._restored(one, len(cells))
                    findings.append(one)
                    advance(1)
        return findings

    async def _saved(self, cell: Cell, stack: AsyncExitStack, heavy: float) -> Fixture | Finding:
        """Set up a cell before a restart, when all cells have tenants at once.

        The tenants of a prompt module are `heavy` while the cell is set up or compared, because
        their parts of a small cache must hold all modules of a request.
        """
        if not self._applies(cell):
            return untested(cell, Outcome.NOT_APPLICABLE, _NO_MODULES)
        try:
            fixture = await self._prepared(cell, stack, heavy)
        except ServerRefused as refusal:
            return _without_room(cell, refusal)
        if cell.case.is_module:
            await weigh(self._server, fixture, HEAVY, LIGHT)
        return fixture

    async def _restored(self, fixture: Fixture, heavy: float) -> Finding:
        if not fixture.cell.case.is_module:
            return await self._compared(fixture)
        await weigh(self._server, fixture, heavy, heavy)
        try:
            finding = await self._compared(fixture)
        except ServerRefused as refusal:
            finding = _without_room(fixture.cell, refusal)
        await weigh(self._server, fixture, HEAVY, LIGHT)
        return finding

    def _applies(self, cell: Cell) -> bool:
        return self._server.facts.has_modules or not cell.case.is_module

    async def _once(self, cell: Cell) -> Finding:
        try:
            async with AsyncExitStack() as stack:
                return await self._compared(await self._prepared(cell, stack))
        except NotReached as error:
            return untested(cell, Outcome.INCONCLUSIVE, str(error))
        except ServerRefused as refusal:
            return _without_room(cell, refusal)

    async def _prepared(self, cell: Cell, stack: AsyncExitStack, heavy: float = HEAVY) -> Fixture:
        """Set up a cell's fixture, with the first tenant's blocks in the cell's tier."""
        ceiling, pushed, most = 1.0, None, self._most_tokens
        if cell.tier in (TierCase.HOST, TierCase.DISK):
            facts, has_modules = self._server.facts, cell.case.is_module
            most *= _WITH_MODULES if has_modules else 1
            slots = self._slots_a_state
            pushed = squeeze(facts, cell.tier, most, slots, stays_on_device=has_modules)
            ceiling = pushed.ceiling
            if pushed.fill_tokens > self._max_fill_tokens:
                raise NotReached(f"it takes {pushed.fill_tokens} tokens to get to the {cell.tier}")
        fixtures = Fixtures(self._server, stack)
        fixture = await fixtures.fixture(cell, self._prompt_tokens, ceiling, heavy)
        has_states = bool(self._server.facts.tier_states)
        for _ in range(2 + has_states):
            await self._first(fixture)
        if pushed is not None:
            await push_down(self._server, fixture.first.key, pushed, most)
        if cell.tier is TierCase.EVICTED:
            await flush(self._server, fixture.first, fixture.other)
            if (await self._first(fixture)).is_full(self._block_size):
                raise NotReached("the flush left everything in the cache")
            if has_states:
                await self._first(fixture)
        return fixture

    async def _compared(self, fixture: Fixture) -> Finding:
        if fixture.prefix_id is not None:
            await until_warm(self._admin, fixture.prefix_id)
        if fixture.cell.case.leaves:
            await self._admin.call("PATCH", TENANTS.path_of(fixture.other.id), {"group_id": None})
        if fixture.cell.tier in (TierCase.DEVICE, TierCase.EVICTED):
            control, other = await self._first(fixture), await self._other(fixture)
        else:
            other, control = await self._other(fixture), await self._first(fixture)
        published = fixture.published
        # a request continues a recurrent state, which lies at the end of a KV block
        if self._server.facts.tier_states:
            published -= published % self._block_size
        return judged(fixture.cell, control, other, published, self._block_size)

    async def _first(self, fixture: Fixture) -> Reading:
        key, entry = fixture.first.key, fixture.cell.entry
        return await self._server.ask(key, entry, fixture.prompt, fixture.fields)

    async def _other(self, fixture: Fixture) -> Reading | None:
        """Send the other tenant's request. Returns None for a refusal that the case allows."""
        key, entry = fixture.other.key, fixture.cell.entry
        try:
            return await self._server.ask(key, entry, fixture.prompt, fixture.other_fields)
        except ServerRefused as refusal:
            if refusal.status == 400 and fixture.cell.case.expected == "nothing or refused":
                return None
            raise


def _without_room(cell: Cell, refusal: ServerRefused) -> Finding:
    """Write the finding of a cell for which there was no room; raise any other refusal.

    There may be no room for another published prefix, or for the prompt module in the tenant's
    partition.
    """
    is_full = cell.case.publishes is not None and refusal.status == _CONFLICT
    if not is_full and not (cell.case.is_module and refusal.status == _BAD_REQUEST):
        raise refusal
    return untested(cell, Outcome.INCONCLUSIVE, str(refusal))


def squeeze(
    facts: ServerFacts,
    tier: TierCase,
    prompt_tokens: int,
    slots_a_state: int = _SLOTS_A_STATE,
    *,
    stays_on_device: bool = False,
) -> Squeeze:
    """Compute the ceiling and tokens that push a prompt of `prompt_tokens` into a lower tier.

    The ceiling also leaves room for recurrent states: of every `slots_a_state` slots on the device,
    one is assumed not to be reserved for running sequences. With `stays_on_device` the prompt also
    fits under the ceiling on the device.
    """
    blocks = {name: size // facts.block_size for name, size in facts.tier_tokens.items()}
    above = [name for name in _ORDER[: _ORDER.index(tier)] if name in blocks]
    prompt = prompt_tokens // facts.block_size + 2  # a partial block, and a block for the answer
    if facts.tier_states and tier is TierCase.DISK:
        prompt *= 2  # a prompt with recurrent states moves down in several parts
    kept = {tier: _KEPT} | dict.fromkeys(set(above) - {TierCase.DEVICE}, _ON_THE_WAY)
    if stays_on_device:
        kept = dict.fromkeys(above, 1) | {tier: _KEPT + 1}
    shares = [n * prompt / max(blocks[name], 1) for name, n in kept.items()]
    states = facts.tier_states
    if states:
        shares += [n / max(states.get(name, 0), 1) for name, n in kept.items()]
        shares.append(slots_a_state / states[TierCase.DEVICE])
    ceiling = min(max(shares), 1.0)
    fill = sum(math.ceil(ceiling * blocks[name]) for name in above) + prompt
    # Prompt modules are read more often, so it takes more filling to displace them. A push through
    # two tiers takes more filling, too.
    if stays_on_device or len(above) > 1:
        fill += prompt
    return Squeeze(ceiling, fill * facts.block_size)


async def push_down(server: ServerUnderTest, key: str, wanted: Squeeze, prompt_tokens: int) -> None:
    """Send filling prompts as the tenant under the ceiling, to push its first prompt down.

    Each filling prompt is sent twice, because a prompt sent once would not displace a prompt sent
    twice. Each filling prompt has a random salt, so that no cell finds the first tokens of filling
    prompts.
    """
    tokens = wanted.fill_tokens
    for prompt in server.new_prompts(tokens, max(tokens // _PIECES, prompt_tokens)):
        salt = {"cache_salt": secrets.token_hex(8)}
        for _ in range(2):
            await server.ask(key, IDS, prompt, salt)
    await server.copied()
