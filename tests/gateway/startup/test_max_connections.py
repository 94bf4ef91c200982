"""The limit on connections leaves enough file descriptors for the files that the process opens."""

from __future__ import annotations

import sys

import pytest

from gateway.config import Bounds, GatewayConfig
from gateway.startup.cannot_start import CannotStart
from gateway.startup.max_connections import OPERATOR, max_connections, open_files_limit


def config(wanted: int | None = None, **settings: object) -> GatewayConfig:
    given = {"model_dir": "", "model_name": "", "data_dir": "", "engines": ()}
    return GatewayConfig(**given, bounds=Bounds(max_connections=wanted), **settings)  # type: ignore[arg-type]


def test_what_is_left_is_for_tenants() -> None:
    alone = max_connections(config(), 1024)
    assert 800 < alone < 1024
    assert max_connections(config(), 2048) == alone + 1024


def test_a_port_for_the_operator_has_room_of_its_own() -> None:
    one, two = (max_connections(config(admin_port=port), 1024) for port in (None, 8001))
    assert OPERATOR > 0
    assert two + OPERATOR == one


def test_redis_takes_descriptors_too() -> None:
    without, with_redis = (
        max_connections(config(redis_url=url), 1024) for url in (None, "redis://x")
    )
    assert with_redis <= without - 64


def test_no_limit_is_room_for_any_number() -> None:
    assert max_connections(config(), sys.maxsize) > 1 << 30
    assert 0 < open_files_limit() <= sys.maxsize


@pytest.mark.parametrize(("wanted", "open_files"), [(None, 100), (1000, 1024), (None, 0)])
def test_too_little_room_is_said_at_the_start(wanted: int | None, open_files: int) -> None:
    with pytest.raises(CannotStart, match=f"a limit of {open_files} open files"):
        max_connections(config(wanted), open_files)


def test_fewer_may_be_asked_for() -> None:
    assert max_connections(config(5), 1024) == 5
    assert max_connections(config(5), 110) == 5
