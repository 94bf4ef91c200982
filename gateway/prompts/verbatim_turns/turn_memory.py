"""The recently generated turns, whose tokens a later request can reuse."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Bounds
from gateway.prompts.tokens.splicing import Place
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.prompts.verbatim_turns.said import Said
from gateway.tenant_memory import TenantMemory


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """A generated turn: its tokens and its place in the rendered chat."""

    begin: Place
    before: bytes  # digest of the chat up to `begin`
    token_ids: TokenIds  # all tokens from `begin` on, without the token that ended the turn
    said: Said
    # last control token that the model wrote in the turn; None: no control token
    last_marker: str | None
    written: bytes = b""  # digest of a text of the template that was parsed to the content `said`
    # If thoughts are kept: the prompt's tokens from the turn `parent`, or from its beginning, to
    # this turn.
    since: TokenIds | None = None
    parent: bytes | None = None

    @property
    def size(self) -> int:
        """The turn's approximate size in bytes."""
        said = self.said
        calls = sum(len(part) for call in said.calls for part in call)
        since = 0 if self.since is None else self.since.nbytes
        return since + self.token_ids.nbytes + 4 * (len(said.reasoning) + len(said.text) + calls)


class TurnMemory(TenantMemory[GeneratedTurn]):
    """A memory of turns, by tenant, and by the hash of all messages up to the turn."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        super().__init__(
            bounds.max_tenant_turn_bytes, bounds.max_all_turn_bytes, bounds.turn_life_s, clock
        )
