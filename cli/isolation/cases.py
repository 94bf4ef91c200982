"""The cells of the paired test.

A cell names the difference of two requests, the tier of the first request's KV blocks, and the
entry point.
"""

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

from cli.operating.prefixes import EVERYONE

Expected = Literal["nothing", "anything", "nothing or refused", "published"]
Kind = Literal["chat", "text", "ids"]


class TierCase(StrEnum):
    """The tier of the first request's KV blocks when the other request comes.

    EVICTED and RESTARTED name an event between the two requests, not a tier.
    """

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    EVICTED = "evicted"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A way to send a prompt."""

    name: str
    path: str
    kind: Kind
    stream: bool


_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
IDS = EntryPoint("completions, token ids", _COMPLETIONS, "ids", stream=False)
IDS_STREAMED = EntryPoint("completions, token ids, streamed", _COMPLETIONS, "ids", stream=True)
ENTRY_POINTS = (
    EntryPoint("chat", _CHAT, "chat", stream=False),
    EntryPoint("chat, streamed", _CHAT, "chat", stream=True),
    EntryPoint("completions, text", _COMPLETIONS, "text", stream=False),
    EntryPoint("completions, text, streamed", _COMPLETIONS, "text", stream=True),
    IDS,
    IDS_STREAMED,
)


@dataclass(frozen=True, slots=True)
class Case:
    """Two requests with the same tokens that differ in one property.

    The defaults are two unrelated tenants. {mark}, {first_id}, {first_name} and {group_id} in
    strings are replaced once the tenants exist.
    """

    dimension: str
    name: str
    _: KW_ONLY
    one_tenant: bool = False
    salt: str | None = None  # `cache_salt` of the first request
    other_salt: str | None = None
    user: str | None = None
    other_name: str | None = None  # name of the other tenant; None: a random name
    groups: tuple[str | None, str | None] = (None, None)
    leaves: bool = False
    # whether the tokens belong to a prompt module that both tenants have stored
    is_module: bool = False
    # the tenants for whom the prompt's beginning is published: EVERYONE or a group's id
    publishes: str | None = None
    expected: Expected = "nothing"


@dataclass(frozen=True, slots=True)
class Cell:
    """A case at one tier and entry point."""

    case: Case
    tier: TierCase
    entry: EntryPoint


_SALT, _OTHER_SALT = "{mark}-salt", "{mark}-other-salt"
_GROUP, _OTHER_GROUP = "{mark}-group", "{mark}-other-group"
_EQUAL, PUBLISHED = "equal strings", "published"
_MEMBERS, _STRANGER = (_GROUP, _GROUP), (_GROUP, None)
_empty_salt = partial(Case, "salt", one_tenant=True, other_salt="", expected="nothing or refused")

CASES = (
    Case("tenant", "another tenant"),
    Case("tenant", "another tenant, the same user and prompt_cache_key", user="{mark}"),
    Case("group", "member", groups=_MEMBERS, expected="anything"),
    Case("group", "stranger", groups=_STRANGER),
    Case("group", "of another group", groups=(_GROUP, _OTHER_GROUP)),
    Case("group", "left the group", groups=_MEMBERS, leaves=True),
    Case("group", "member, with a salt of its own", groups=_MEMBERS, other_salt=_OTHER_SALT),
    Case("salt", "unset, set", one_tenant=True, other_salt=_SALT),
    Case("salt", "set, unset", one_tenant=True, salt=_SALT),
    Case("salt", "set, another", one_tenant=True, salt=_SALT, other_salt=_OTHER_SALT),
    _empty_salt("unset, empty"),
    _empty_salt("set, empty", salt=_SALT),
    Case(_EQUAL, "the same salt of two tenants", salt=_SALT, other_salt=_SALT),
    Case(_EQUAL, "salt is the other's id", other_salt="{first_id}"),
    Case(_EQUAL, "salt is the other's name", other_salt="{first_name}"),
    Case(_EQUAL, "salt is one's own id", one_tenant=True, other_salt="{first_id}"),
    Case(_EQUAL, "salt is the other's group", groups=_STRANGER, other_salt="{group_id}"),
    Case(_EQUAL, "tenant is named as the other's salt", salt=_SALT, other_name=_SALT),
    Case(_EQUAL, "group is named as the other's id", groups=(None, "{first_id}")),
)

# The prompt's beginning is published, and its end belongs to the first tenant. The other tenant
# must get exactly the beginning, whatever its salt. A tenant outside the prefix's group gets
# nothing.
_shared = partial(Case, PUBLISHED, expected="published")
PUBLISHED_CASES = (
    _shared("another tenant", publishes=EVERYONE),
    _shared("the same salt of two tenants", salt=_SALT, other_salt=_SALT, publishes=EVERYONE),
    _shared("unset, set", one_tenant=True, other_salt=_SALT, publishes=EVERYONE),
    _shared(
        "for a group: member, with a salt of its own",
        groups=_MEMBERS,
        other_salt=_OTHER_SALT,
        publishes=_GROUP,
    ),
    Case(PUBLISHED, "for a group: stranger", groups=_STRANGER, publishes=_GROUP),
    Case(PUBLISHED, "for a group: left the group", groups=_MEMBERS, leaves=True, publishes=_GROUP),
)

_module = partial(Case, "module", is_module=True)
MODULE_CASES = (
    _module("another tenant's, of the same text"),
    _module("the same salt of two tenants", salt=_SALT, other_salt=_SALT),
    _module("the same text under another salt", one_tenant=True, other_salt=_SALT),
)


def cells_of(tier: TierCase, *, each_entry: bool = True) -> list[Cell]:
    """List every case at every entry point, or at a single entry point each.

    With `each_entry` false, the entry point differs from case to case, and from tier to tier.
    """
    cases = (*CASES, *PUBLISHED_CASES, *MODULE_CASES)
    if each_entry:
        return [Cell(case, tier, entry) for case in cases for entry in ENTRY_POINTS]
    first = list(TierCase).index(tier)
    return [
        Cell(case, tier, ENTRY_POINTS[(first + number) % len(ENTRY_POINTS)])
        for number, case in enumerate(cases)
    ]
