"""`ratoon restart` refuses invalid uses. `seams/faults/test_replicas` tests a real restart."""

import os
from pathlib import Path

from cli.operating.restart import LATE_LOOKS, Absences
from cli.supervision.address import ServerAddress, address_told
from tests.cli.console import Console


def test_without_a_server_there_is_nothing_to_restart(tmp_path: Path) -> None:
    printed = Console().type("restart", "--data-dir", str(tmp_path), "--admin-key", "k")
    assert printed.status == 2
    assert f"no server runs in {tmp_path}" in printed.err


def test_a_gateway_alone_has_no_engines_to_restart(tmp_path: Path) -> None:
    address = ServerAddress(url="http://x", admin_url="http://x", pid=os.getpid())
    with address_told(tmp_path, address):
        printed = Console().type("restart", "--data-dir", str(tmp_path), "--admin-key", "k")
    assert printed.status == 2
    assert "a gateway alone" in printed.err


def test_an_engine_that_is_not_back_is_named_once() -> None:
    absences = Absences()
    looks = [absences.late({"0", "1"} if look == 0 else {"1"}) for look in range(3 * LATE_LOOKS)]
    assert looks[LATE_LOOKS - 1] == ["1"]
    assert [name for late in looks for name in late] == ["1"], (
        "0 was back in time, and 1 is named no second time"
    )
