"""`cache.load` in a request: refused unless the operator allows it."""

from __future__ import annotations

import msgspec
import pytest

from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.openai.sampling import checked_loads
from gateway.openai.schema import CompletionRequest

ALLOWED = Bounds(allow_cache_load=True)


def request(**extra: object) -> CompletionRequest:
    body = msgspec.json.encode({"model": "m", "prompt": "p", **extra})
    return msgspec.json.decode(body, type=CompletionRequest)


@pytest.mark.parametrize("load", ["auto", "always", "never"])
def test_what_is_asked_for_goes_through_where_it_is_allowed(load: str) -> None:
    wire = request(cache={"load": load})
    assert checked_loads(wire, ALLOWED) == load
    with pytest.raises(BadRequest, match="not allowed"):
        checked_loads(wire, Bounds())


@pytest.mark.parametrize("extra", [{}, {"cache": None}, {"cache": {}}, {"cache": {"load": None}}])
def test_the_default_is_auto(extra: dict[str, object]) -> None:
    assert checked_loads(request(**extra), Bounds()) == "auto"


@pytest.mark.parametrize("cache", [{"load": "sometimes"}, {"laod": "never"}, "never"])
def test_any_other_value_is_refused(cache: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        request(cache=cache)
