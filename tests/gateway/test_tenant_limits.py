"""Valid limits of a tenant are stored as given, and invalid ones are refused."""

from __future__ import annotations

import msgspec
import pytest

from gateway.tenant_limits import MAX_BURST_S, MAX_RATE, MAX_UNITS, Budget, Limits


@pytest.mark.parametrize(
    "limits",
    [
        Limits(requests_per_minute=1),
        Limits(tokens_per_minute=1),
        Limits(max_concurrent=1),
        Limits(budget=Budget(units=0)),
    ],
)
def test_one_limit_alone_is_a_limit(limits: Limits) -> None:
    """Apply a single limit.

    A tenant without any limit is not looked up at all.
    """
    assert not limits.is_unlimited
    assert Limits().is_unlimited
    assert Limits(burst_s=1.0).is_unlimited


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("requests_per_minute", 1, MAX_RATE),
        ("tokens_per_minute", 1, MAX_RATE),
        ("max_concurrent", 1, MAX_RATE),
        ("burst_s", 0.001, MAX_BURST_S),
    ],
)
def test_bounds_are_kept_to_the_last_one(field: str, least: float, most: float) -> None:
    for fits in (least, most, None):
        read = msgspec.json.decode(msgspec.json.encode({field: fits}), type=Limits)
        assert getattr(read, field) == fits
    for odd in (0, -1, most + 1):
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.json.decode(msgspec.json.encode({field: odd}), type=Limits)


def test_a_budget_may_be_nothing_and_not_less() -> None:
    for fits in (0.0, MAX_UNITS):
        read = msgspec.json.decode(msgspec.json.encode({"units": fits}), type=Budget)
        assert read == Budget(units=fits, period="month")
    for odd in (-0.001, MAX_UNITS + 1):
        with pytest.raises(msgspec.ValidationError, match="units"):
            msgspec.json.decode(msgspec.json.encode({"units": odd}), type=Budget)


@pytest.mark.parametrize("odd", [b'{"rpm": 1}', b'{"budget": {"units": 1, "per": "day"}}'])
def test_an_unknown_field_is_refused(odd: bytes) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(odd, type=Limits)
