"""What an exchange is made of, as its owner sees it: the same of one rank and of several.

    Answers   hands over what other engines ask, and sends them blocks
    Asks      asks other engines, and brings what they send

Of one rank these are two threads (`answering`, `asking`). Of several each rank has such threads for
its slices of the blocks, and rank 0 has all of them as one (`engine.ranks`).
"""

from __future__ import annotations

from typing import Protocol

from engine.exchange.answering import Asked, Asker, Gone
from engine.exchange.fetch import Fetch, Patience, Way
from engine.exchange.sending import BlocksToSend
from storage.copies import CopyEvent


class Answers(Protocol):
    """What other engines ask, and are sent. For the owner thread."""

    @property
    def sent_blocks(self) -> int:
        """Since the start."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Of these, on all ranks."""
        ...

    def take(self) -> list[Asked | Gone]:
        """What has come since the last call."""
        ...

    def found(self, asker: Asker, blocks: int, first_reads: dict[str, int]) -> None:
        """Say that the first `blocks` blocks of the prompt are about to be sent."""
        ...

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """Send blocks, in order after those before; leased until the asker is `Gone`."""
        ...

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Nothing more will come for it. `Gone` follows once all has been taken."""
        ...


class Asks(Protocol):
    """Asks other engines for blocks. For the owner thread."""

    def begin(self, fetch: Fetch) -> None:
        """Ask for what a fetch wants; it shows from then on how far that has come."""
        ...

    def leave(self, fetch: Fetch) -> None:
        """It was closed before its end. Nothing more of it is written once this returns."""
        ...

    def turn(self) -> None:
        """Note what has come; before fetches are looked at."""
        ...


class OpenExchange(Protocol):
    """An exchange that is open, by whose parts blocks go."""

    @property
    def answering(self) -> Answers | None:
        """None: other engines fetch nothing here."""
        ...

    @property
    def address(self) -> str | None:
        """Where they ask; None: nowhere."""
        ...

    @property
    def patience(self) -> Patience | None:
        """How long fetches may take; None: as usual."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, on all ranks."""
        ...

    def mark(self) -> CopyEvent:
        """A point after all that was launched so far."""
        ...

    def asking(self, fingerprint: bytes) -> Asks:
        """What asks others, made when it is first needed. Raises OSError: not now."""
        ...

    def way_of(self, where: str) -> Way:
        """Over which way blocks of the engine there are expected."""
        ...
