"""The turns that were generated of late, so that a following request can have their very tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config import Bounds
from gateway.prompts.tokens.splicing import Place
from gateway.prompts.tokens.tokenizer import TokenIds
from gateway.prompts.verbatim_turns.said import Said
from gateway.tenant_memory import TenantMemory


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """A turn, and where it was generated."""

    begin: Place  # in the rendered chat
    before: bytes  # digest of the chat up to there
    token_ids: TokenIds  # of all from there on, without the token that ended it
    said: Said
    last_marker: str | None  # the last control token that the model wrote in it
    written: bytes = b""  # digest of how the template wrote it, once that was read as `said`
    # Where thoughts are kept: the prompt's tokens since the turn `parent`, or since its beginning.
    since: TokenIds | None = None
    parent: bytes | None = None

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        said = self.said
        calls = sum(len(part) for call in said.calls for part in call)
        since = 0 if self.since is None else self.since.nbytes
        return since + self.token_ids.nbytes + 4 * (len(said.reasoning) + len(said.text) + calls)


class TurnMemory(TenantMemory[GeneratedTurn]):
    """The turns by tenant, and by the hash of what they say and of all before."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        """Take `clock`, in seconds."""
        super().__init__(
            bounds.max_tenant_turn_bytes, bounds.max_all_turn_bytes, bounds.turn_life_s, clock
        )
