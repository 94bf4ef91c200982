"""A tenant's share of the cache is sent to the engine as the operator sets it."""

from __future__ import annotations

import msgspec
import pytest

from gateway.tenant_limits import CacheQuota


def read(**fields: float) -> CacheQuota:
    return msgspec.json.decode(msgspec.json.encode(fields), type=CacheQuota)


def test_what_is_not_set_is_all_of_what_is_left_and_nothing_promised() -> None:
    assert read() == CacheQuota(floor=0.0, ceiling=1.0)
    assert read().shares is None


@pytest.mark.parametrize(
    "fields", [{"floor": 0.2}, {"ceiling": 0.5}, {"floor": 0.5, "ceiling": 0.5}, {"ceiling": 0.0}]
)
def test_what_is_set_is_sent(fields: dict[str, float]) -> None:
    quota = read(**fields)
    assert quota.shares == (fields.get("floor", 0.0), fields.get("ceiling", 1.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"floor": 0.6, "ceiling": 0.5},
        {"floor": -0.1},
        {"floor": 1.1},
        {"ceiling": -0.1},
        {"ceiling": 1.1},
        {"roof": 0.5},
    ],
)
def test_what_cannot_be_kept_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(**fields)
