"""Limits in a file survive restarts, and errors of the file have their own exceptions.
`test_contract` tests the properties of every store.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from gateway.errors import StateLost, Unavailable
from gateway.limits.limiter import Amount, Demand, Denied, Granted, Hold
from gateway.limits.memory import Clocks
from gateway.limits.sqlite import SqliteLimiter
from gateway.tenant_limits import Budget, Limits
from tests.gateway.support.manual_clock import ManualClock

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


BUDGET = Limits(tokens_per_minute=700, max_concurrent=3, budget=Budget(units=1.0))
# A tenant's entry from before the file had a table row for each hold. Requests that began at 1000 s
# hold 100 and 50 tokens at 0.2 and 0.3 units, and 7 tokens were used for 0.05.
BEFORE_ROWS = bytes.fromhex(
    "85a8726571756573747382a56c6576656cce0aba9500a26174ce3b9aca00a6746f6b656e7382a56c6576656cce1908"
    "b100a26174ce3b9aca00ab68656c645f746f6b656e73cc96a5686f6c647382a16194ce3f2e510064ce00030d40a56d"
    "6f6e7468a16294ce3f2e510032ce000493e0a56d6f6e7468a76275646765747381a56d6f6e746893cdc350ce0007a1"
    "20cd5f02"
)


async def test_a_file_of_an_earlier_release_is_taken_over(path: Path) -> None:
    await SqliteLimiter(path).close()
    with sqlite3.connect(path) as earlier:
        earlier.execute("DROP TABLE holds")
        earlier.execute("INSERT INTO accounts VALUES ('tn_a', ?)", (BEFORE_ROWS,))
    earlier.close()
    monotonic, wall = ManualClock(1000.0), ManualClock(1_796_000_000.0)
    limiter = SqliteLimiter(path, Clocks(monotonic, wall))
    refused = await limiter.reserve(Demand("c", "tn_a", BUDGET, Amount(cost=460_000)))
    assert isinstance(refused, Denied)
    assert (refused.reason, refused.budget_left) == ("budget", 450_000)
    begun = Demand("a", "tn_a", BUDGET, Amount(100, 200_000))
    await limiter.charge(Hold(begun), Amount(10, 100_000))
    granted = await limiter.reserve(Demand("d", "tn_a", BUDGET, Amount(cost=550_000)))
    assert isinstance(granted, Granted)
    assert granted.standing.tokens is not None
    assert granted.standing.tokens.remaining == 700 - 7 - 10 - 50
    monotonic.advance(61)
    await limiter.charge(granted.hold, Amount())
    await limiter.close()
    assert _rows(path, "holds") == 0, "they lapse as they would have"


async def test_a_charge_that_cannot_be_written_is_written_later(path: Path) -> None:
    limiter = SqliteLimiter(path)
    one, other = [
        await limiter.reserve(Demand(name, "tn_a", BUDGET, Amount(cost=400_000))) for name in "ab"
    ]
    assert isinstance(one, Granted)
    assert isinstance(other, Granted)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    await asyncio.gather(*(limiter.charge(one.hold, Amount(cost=cost)) for cost in (10, 20)))
    assert _rows(path, "holds") == 2
    holder.execute("ROLLBACK")
    holder.close()
    refused = await limiter.reserve(Demand("c", "tn_a", BUDGET, Amount(cost=999_999)))
    assert isinstance(refused, Denied)
    assert refused.budget_left == 600_000 - 10, "the first of the two was counted, and once"
    await limiter.charge(other.hold, Amount(cost=5))
    await limiter.close()
    assert _rows(path, "holds") == 0


@pytest.mark.parametrize("late", ["renew", "close"])
async def test_what_is_owed_is_written_without_further_requests(path: Path, late: str) -> None:
    limiter = SqliteLimiter(path)
    granted = await limiter.reserve(Demand("a", "tn_a", BUDGET, Amount(cost=400_000)))
    assert isinstance(granted, Granted)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    await limiter.charge(granted.hold, Amount())
    holder.execute("ROLLBACK")
    holder.close()
    assert _rows(path, "holds") == 1, "the control: it is owed"
    if late == "renew":
        await limiter.renew([])
        assert _rows(path, "holds") == 0
    await limiter.close()
    assert _rows(path, "holds") == 0


async def test_the_loop_goes_on_while_another_worker_writes(path: Path) -> None:
    limiter = SqliteLimiter(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    deciding = [asyncio.create_task(limiter.reserve(demand(name))) for name in ("a", "b")]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(task.done() for task in deciding)
    holder.execute("ROLLBACK")
    holder.close()
    first, second = await asyncio.gather(*deciding)
    assert isinstance(first, Granted)
    assert isinstance(second, Denied), "in the order in which they came"
    await limiter.close()


async def _steps(limiter: SqliteLimiter, name: str) -> int:
    """Count the steps of SQLite's virtual machine for a request, from its beginning to its end."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    limiter.file.run(lambda connection: connection.set_progress_handler(count, 1))
    granted = await limiter.reserve(Demand(name, "tn_a", BUSY, Amount(1, 1)))
    assert isinstance(granted, Granted)
    await limiter.renew([granted.hold])
    await limiter.charge(granted.hold, Amount(1, 1))
    limiter.file.run(lambda connection: connection.set_progress_handler(None, 0))
    return steps


BUSY = Limits(tokens_per_minute=10_000_000, budget=Budget(units=1.0))


async def test_a_decision_costs_the_same_however_many_requests_run(path: Path) -> None:
    clock = ManualClock(1000.0)
    limiter = SqliteLimiter(path, Clocks(clock, clock))
    before = await _steps(limiter, "first")
    for number in range(500):
        await limiter.reserve(Demand(f"r{number}", "tn_a", BUSY, Amount(1, 1)))
    after = await _steps(limiter, "last")
    assert _rows(path, "holds") == 500
    assert after <= before + 20
    clock.advance(61)
    assert await _steps(limiter, "lapses") > after + 500, "the control: this one walks them"
    await limiter.close()


def _rows(path: Path, table: str) -> int:
    with sqlite3.connect(path) as reader:
        (found,) = reader.execute(f"SELECT count(*) FROM {table}").fetchone()
    reader.close()
    return int(found)
