"""What `ratoon restart` refuses; that it restarts is shown by `seams/faults/test_replicas`."""

import os
from pathlib import Path

from cli.serving.address import ServerAddress, address_told
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
