"""The running requests: the engine's sequences, and this process's facts about them.

The engine has the sequences of all workers' requests. The workers that answer the requests add
their routes. These workers also add requests that are not in the engine yet, or have left the
engine (`known.py`).
"""

import time
from collections.abc import Iterable
from typing import Literal

import msgspec

from engine.link.view_messages import Sequences, SequenceState, SequenceView
from gateway.overview.known import OwnRequest

LISTED = 200
# maximum number of sequences that the engine is asked for, since a request may have several
SEQUENCES = 2 * LISTED

State = Literal["gateway", "waiting", "loading", "prefill", "decode"]


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Its tokens are None in state "gateway", in which the engine lacks the request.

    `route` is None for requests of other gateways.
    """

    request_id: str
    tenant: str
    name: str | None
    route: str | None
    model: str
    state: State
    age_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int | None


class RequestList(msgspec.Struct, frozen=True):
    """Answer of GET /admin/requests: at most 200 requests, the oldest first, without text."""

    total: int
    requests: list[RequestView]


def requests_under_way(
    sequences: Sequences, own: Iterable[OwnRequest], names: dict[str, str], model: str
) -> RequestList:
    """List each running request once, with its choices counted together."""
    mine = {one.id: one for one in own}
    by_request: dict[str, list[SequenceView]] = {}
    for sequence in sequences.sequences:
        by_request.setdefault(_request_of(sequence), []).append(sequence)
    found = [
        _in_engine(request_id, some, mine.get(request_id), names, model)
        for request_id, some in by_request.items()
    ]
    found += [_in_gateway(one, names, model) for one in mine.values() if one.id not in by_request]
    found.sort(key=lambda one: -one.age_s)
    more_choices = len(sequences.sequences) - len(by_request)
    total = sequences.total - more_choices + len(found) - len(by_request)
    return RequestList(total, found[:LISTED])


def _request_of(sequence: SequenceView) -> str:
    """Return the request id from which admission made a sequence's id."""
    return sequence.request_id.rpartition("-")[0] or sequence.request_id


def _in_engine(
    request_id: str,
    some: list[SequenceView],
    own: OwnRequest | None,
    names: dict[str, str],
    model: str,
) -> RequestView:
    first = some[0]
    state: SequenceState = first.state
    return RequestView(
        request_id=request_id,
        tenant=first.flow,
        name=names.get(first.flow),
        route=None if own is None else own.route,
        model=model,
        state=state,
        age_s=first.age_s if own is None else _age(own),
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        generated_tokens=sum(one.generated_tokens for one in some),
    )


def _in_gateway(own: OwnRequest, names: dict[str, str], model: str) -> RequestView:
    tenant = own.tenant_id or ""
    return RequestView(
        request_id=own.id,
        tenant=tenant,
        name=names.get(tenant),
        route=own.route,
        model=model,
        state="gateway",
        age_s=_age(own),
        prompt_tokens=None,
        cached_tokens=None,
        generated_tokens=None,
    )


def _age(own: OwnRequest) -> float:
    return time.monotonic() - own.arrived
