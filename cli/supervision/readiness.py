"""The supervisor's probe of the gateway, which shows which processes answer.

The gateway's /readyz is read with the standard library. The command line's HTTP client would be a
third of all code that the supervisor loads.

`supervisor.py` decides what happens to a silent process.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import msgspec

from cli.json_text import NotJson, decode_json
from cli.supervision.serving_state import GATEWAY, ChildName
from cli.supervision.watch import Probed

_TIMEOUT_S = 2.0
# Whether the engine answers, by the status of /readyz. For other statuses this is unknown: a
# "stalled" engine recovers, or the gateway gives it up, and a damaged state says nothing about
# engines.
_READINESS = {"ready": True, "state_evicts": True, "disk_full": True, "not_ready": False}
# Whether an engine answers, by its replica's state. For "stalled" and "refused" this is unknown: a
# refused engine lives but is never ready.
_ANSWERS = {"ready": True, "draining": True, "absent": False}


class _Replica(msgspec.Struct, frozen=True):
    state: str
    engine_id: str | None = None


class _Readiness(msgspec.Struct, frozen=True):
    status: str
    replicas: dict[str, _Replica] = {}  # states of the engines, in order


async def probe(url: str, engines: Sequence[ChildName]) -> Probed:
    """Fetch the gateway's /readyz, and return for each process whether it answers.

    True means that the process answers. For an engine that answers, its id is returned instead
    of True, if known. False means no answer, and None means unknown. A gateway that refuses or
    breaks the connection is unknown. Such a gateway may not listen yet, may be stopping, or may
    have too many connections (503). A gateway that sends nothing within the timeout does not
    answer. Engines are unknown if the gateway does not answer, or while it reports them as stalled.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            body = await asyncio.to_thread(_body, url)
            health = decode_json(body, _Readiness)
    except TimeoutError:
        return {GATEWAY: False, **dict.fromkeys(engines)}
    except (OSError, HTTPException, NotJson):
        return {GATEWAY: None, **dict.fromkeys(engines)}
    return {GATEWAY: True, **_answering(health, engines)}


def _body(url: str) -> bytes:
    """Fetch the body of `url`, whatever the status. Raises OSError if no server listens."""
    place = urlsplit(url)
    with closing(HTTPConnection(place.netloc, timeout=_TIMEOUT_S)) as connection:
        connection.request("GET", place.path)
        return connection.getresponse().read()


def _answering(health: _Readiness, engines: Sequence[ChildName]) -> Probed:
    if not health.replicas:
        return dict.fromkeys(engines, _READINESS.get(health.status))
    replicas = zip(engines, health.replicas.values(), strict=False)
    return {name: _answer(replica) for name, replica in replicas}


def _answer(replica: _Replica) -> bool | str | None:
    answers = _ANSWERS.get(replica.state)
    return answers and (replica.engine_id or True)
