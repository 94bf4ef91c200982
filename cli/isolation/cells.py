"""The cells: how two requests differ, where the blocks are, through which entry point is asked.

Knows: which tests there are, as data. Does not know: HTTP, or how a cell is run (`paired`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cli.prefixes import EVERYONE

Expected = Literal["nothing", "anything", "nothing or refused", "published"]
Kind = Literal["chat", "text", "ids"]


class Tier(StrEnum):
    """Where the first's blocks are, or what has happened to them, when the second asks."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    EVICTED = "evicted"  # and computed anew by the first
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One way to ask."""

    name: str
    path: str
    kind: Kind
    stream: bool


_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENTRY_POINTS = (
    EntryPoint("chat", _CHAT, "chat", stream=False),
    EntryPoint("chat, streamed", _CHAT, "chat", stream=True),
    EntryPoint("completions, text", _COMPLETIONS, "text", stream=False),
    EntryPoint("completions, text, streamed", _COMPLETIONS, "text", stream=True),
    EntryPoint("completions, token ids", _COMPLETIONS, "ids", stream=False),
    EntryPoint("completions, token ids, streamed", _COMPLETIONS, "ids", stream=True),
)


@dataclass(frozen=True, slots=True)
class Side:
    """Who asks, and the fields of its request besides the prompt.

    Braces in a value are replaced by a word of the cast: {mark}, {first_id}, {first_name}, ...
    """

    tenant: Literal["first", "second"]
    salt: str | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """Two requests with the same tokens that differ in one dimension."""

    dimension: str
    name: str
    other: Side
    asker: Side = field(default_factory=lambda: Side("first"))
    second_name: str | None = None  # of the second tenant; None: any
    first_group: str | None = None
    second_group: str | None = None
    leaves: bool = False  # the second has left its group when it asks
    publishes: str | None = None  # for whom the prompt's first part is published; None: it is not
    expected: Expected = "nothing"

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups that it takes, each once, the first tenant's first."""
        named = (self.first_group, self.second_group)
        return tuple(dict.fromkeys(name for name in named if name is not None))


@dataclass(frozen=True, slots=True)
class Cell:
    """One test."""

    case: Case
    tier: Tier
    entry: EntryPoint


_SECOND = Side("second")
_SALT, _OTHER_SALT = "{mark}-salt", "{mark}-other-salt"
_GROUP, _OTHER_GROUP = "{mark}-group", "{mark}-other-group"
_NAMED = (("prompt_cache_key", "{mark}"), ("user", "{mark}"))

CASES = (
    Case("tenant", "another tenant", _SECOND),
    Case(
        "tenant",
        "another tenant, the same user and prompt_cache_key",
        Side("second", fields=_NAMED),
        Side("first", fields=_NAMED),
    ),
    Case("group", "member", _SECOND, first_group=_GROUP, second_group=_GROUP, expected="anything"),
    Case("group", "stranger", _SECOND, first_group=_GROUP),
    Case("group", "of another group", _SECOND, first_group=_GROUP, second_group=_OTHER_GROUP),
    Case(
        "group",
        "left the group",
        _SECOND,
        first_group=_GROUP,
        second_group=_GROUP,
        leaves=True,
    ),
    Case(
        "group",
        "member, with a salt of its own",
        Side("second", _OTHER_SALT),
        first_group=_GROUP,
        second_group=_GROUP,
    ),
    Case("salt", "unset, set", Side("first", _SALT)),
    Case("salt", "set, unset", Side("first"), Side("first", _SALT)),
    Case("salt", "set, another", Side("first", _OTHER_SALT), Side("first", _SALT)),
    Case("salt", "unset, empty", Side("first", ""), expected="nothing or refused"),
    Case(
        "salt", "set, empty", Side("first", ""), Side("first", _SALT), expected="nothing or refused"
    ),
    Case(
        "equal strings", "the same salt of two tenants", Side("second", _SALT), Side("first", _SALT)
    ),
    Case("equal strings", "salt is the other's id", Side("second", "{first_id}")),
    Case("equal strings", "salt is the other's name", Side("second", "{first_name}")),
    Case("equal strings", "salt is one's own id", Side("first", "{first_id}")),
    Case(
        "equal strings",
        "salt is the other's group",
        Side("second", "{first_group_id}"),
        first_group=_GROUP,
    ),
    Case(
        "equal strings",
        "tenant is named as the other's salt",
        _SECOND,
        Side("first", _SALT),
        second_name=_SALT,
    ),
    Case("equal strings", "group is named as the other's id", _SECOND, second_group="{first_id}"),
)

PUBLISHED = "published"

# The beginning of the prompt is published and the rest is the asker's own: the other must get
# exactly the beginning, whatever its salt; someone outside the prefix's group must get nothing.
PUBLISHED_CASES = (
    Case(PUBLISHED, "another tenant", _SECOND, publishes=EVERYONE, expected="published"),
    Case(
        PUBLISHED,
        "the same salt of two tenants",
        Side("second", _SALT),
        Side("first", _SALT),
        publishes=EVERYONE,
        expected="published",
    ),
    Case(PUBLISHED, "unset, set", Side("first", _SALT), publishes=EVERYONE, expected="published"),
    Case(
        PUBLISHED,
        "for a group: member, with a salt of its own",
        Side("second", _OTHER_SALT),
        first_group=_GROUP,
        second_group=_GROUP,
        publishes=_GROUP,
        expected="published",
    ),
    Case(PUBLISHED, "for a group: stranger", _SECOND, first_group=_GROUP, publishes=_GROUP),
    Case(
        PUBLISHED,
        "for a group: left the group",
        _SECOND,
        first_group=_GROUP,
        second_group=_GROUP,
        leaves=True,
        publishes=_GROUP,
    ),
)


def cells_of(tier: Tier, *, publishes: bool, each_entry: bool = True) -> list[Cell]:
    """Every case through every entry point, or (`each_entry` false) each case through one.

    The one differs from case to case, and for one case from tier to tier. `publishes`: the server
    has published prefixes.
    """
    cases = (*CASES, *(PUBLISHED_CASES if publishes else ()))
    if each_entry:
        return [Cell(case, tier, entry) for case in cases for entry in ENTRY_POINTS]
    first = list(Tier).index(tier)
    return [
        Cell(case, tier, ENTRY_POINTS[(first + number) % len(ENTRY_POINTS)])
        for number, case in enumerate(cases)
    ]
