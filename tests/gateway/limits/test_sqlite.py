"""What only the limits' file has to bear; what every home promises is in `test_contract`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gateway.errors import StateLost, Unavailable
from gateway.limits.limiter import Amount, Demand, Denied, Granted
from gateway.limits.sqlite import SqliteLimiter
from gateway.tenant_limits import Limits

ONE_A_MINUTE = Limits(requests_per_minute=1, burst_s=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.sqlite"


def demand(name: str) -> Demand:
    return Demand(name, "tn_a", ONE_A_MINUTE, Amount())


async def test_a_restart_forgets_nothing(path: Path) -> None:
    limiter = SqliteLimiter(path)
    assert isinstance(await limiter.reserve(demand("a")), Granted)
    await limiter.close()
    limiter = SqliteLimiter(path)
    assert isinstance(await limiter.reserve(demand("b")), Denied)
    await limiter.close()


async def test_a_damaged_file_is_down_and_left_alone(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(b"no database " * 100)
    limiter = SqliteLimiter(path)
    assert limiter.file.fault is not None
    assert limiter.file.fault.status == "limits_damaged"
    with pytest.raises(StateLost):
        await limiter.reserve(demand("a"))
    await limiter.close()
    assert path.read_bytes() == b"no database " * 100


async def test_one_that_is_locked_is_down_and_not_broken(path: Path) -> None:
    limiter = SqliteLimiter(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable) as refusal:
        await limiter.reserve(demand("a"))
    assert "locked" in str(refusal.value.__cause__)
    assert not isinstance(refusal.value, StateLost)
    holder.execute("ROLLBACK")
    holder.close()
    assert isinstance(await limiter.reserve(demand("a")), Granted)
    await limiter.close()


@pytest.mark.parametrize("account", [b"\xff", b"\xa1\xff", b'{"\xff": 1}'])
async def test_an_unreadable_account_is_an_error(path: Path, account: bytes) -> None:
    limiter = SqliteLimiter(path)
    with sqlite3.connect(path) as vandal:
        vandal.execute("INSERT INTO accounts VALUES ('tn_a', ?)", (account,))
    vandal.close()
    with pytest.raises(StateLost) as refusal:
        await limiter.reserve(demand("a"))
    assert "cannot be read" in str(refusal.value.__cause__)
    assert limiter.file.fault is not None
    await limiter.close()
