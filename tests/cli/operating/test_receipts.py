"""`ratoon tenants delete --receipt` writes a receipt, which `ratoon receipts` verifies.

The gateway is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.link.erasure import Erasure, TierErasure
from tests.cli.console import Ratoon
from tests.doubles.engine.fake_engine import FakeEngine

OVER = Erasure(tiers=(TierErasure(tier="device", blocks=7, num_bytes=448),), running=0, disk="none")


@pytest.fixture
def erasing(engine: FakeEngine) -> Iterator[None]:
    """Let the fake engine report an erasure."""
    engine.erasure = OVER
    yield
    engine.erasure = None


@pytest.mark.usefixtures("erasing")
def test_a_deletion_s_receipt_is_written_and_verified(ratoon: Ratoon, tmp_path: Path) -> None:
    file = tmp_path / "gone.json"
    ratoon("tenants create gone-tenant")
    said = ratoon(f"tenants delete gone-tenant --yes --receipt {file}").out
    assert "Deleted tenant gone-tenant (tn_" in said
    key = ratoon("receipts key").out.strip()
    shown = ratoon(f"receipts verify {file} --key {key}")
    assert shown.status == 0
    assert "of tenant gone-tenant (tn_" in shown.out
    assert "all is erased" in shown.out
    changed = file.read_text().replace("gone-tenant", "other")
    (tmp_path / "changed.json").write_text(changed)
    refused = ratoon(f"receipts verify {tmp_path / 'changed.json'} --key {key}")
    assert refused.status == 1
    assert "changed" in refused.err
    tenant = json.loads(file.read_text())["receipt"]["tenant"]
    again = tmp_path / "again.json"
    assert ratoon(f"receipts create {tenant} {again}").status == 0
    assert "tenant.receipt" in ratoon("audit --limit 5").out
    assert ratoon(f"receipts verify {again} --key {key}").status == 0
    no_key = ratoon(f"receipts verify {again} --key AAAA")
    assert (no_key.status, "--key: a public key has 32 bytes" in no_key.err) == (2, True)


def test_a_file_that_is_there_is_kept_and_nothing_is_deleted(
    ratoon: Ratoon, tmp_path: Path
) -> None:
    file = tmp_path / "kept.json"
    file.write_text("kept")
    ratoon("tenants create stays-tenant")
    refused = ratoon(f"tenants delete stays-tenant --yes --receipt {file}")
    assert refused.status == 2
    assert file.read_text() == "kept"
    assert "stays-tenant" in ratoon("tenants list").out


def test_an_unknown_tenant_and_a_missing_file_are_said(ratoon: Ratoon, tmp_path: Path) -> None:
    assert "(404)" in ratoon(f"receipts create tn_nobody {tmp_path / 'none.json'}").err
    missing = ratoon(f"receipts verify {tmp_path / 'none.json'} --key x")
    assert missing.status == 1
    assert "No such file" in missing.err
