from dataclasses import replace
from pathlib import Path

import pytest

from cli.client_options import AdminFlags, TargetFlags
from cli.errors import BadSetting
from cli.installation import first_start
from cli.target import admin_target, checked_url, load_target


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    first_start(tmp_path, "the-admin-key-of-this-place")
    return tmp_path


def test_keys_come_from_the_data_directory(data_dir: Path) -> None:
    assert admin_target(AdminFlags(data_dir=data_dir)) == (
        "http://127.0.0.1:8000",
        "the-admin-key-of-this-place",
    )
    url, key = load_target(TargetFlags(data_dir=data_dir))
    assert url == "http://127.0.0.1:8000"
    assert f"RATOON_DEMO_KEY={key}\n" in (data_dir / "keys.env").read_text()


def test_flags_come_before_the_file(data_dir: Path) -> None:
    admin = AdminFlags(data_dir=data_dir, admin_key="other", url="https://gpu7/ratoon/")
    assert admin_target(admin) == ("https://gpu7/ratoon", "other")
    target = TargetFlags(data_dir=data_dir, key="sk-x", url="http://gpu7:1")
    assert load_target(target) == ("http://gpu7:1", "sk-x")


def test_clients_use_the_server_s_listen_address(data_dir: Path) -> None:
    flags = AdminFlags(data_dir=data_dir, host="0.0.0.0", port=9000)
    assert admin_target(flags)[0] == "http://127.0.0.1:9000"
    assert admin_target(replace(flags, admin_port=9001))[0] == "http://127.0.0.1:9001"
    assert load_target(TargetFlags(data_dir=data_dir, port=9000))[0] == "http://127.0.0.1:9000"


def test_no_key_anywhere_names_the_flag_and_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--admin-key: not given, and .*keys\.env is missing"):
        admin_target(AdminFlags(data_dir=tmp_path))
    with pytest.raises(BadSetting, match=r"--key: not given"):
        load_target(TargetFlags(data_dir=tmp_path))


def test_a_removed_demo_key_is_reported(data_dir: Path) -> None:
    keys = data_dir / "keys.env"
    kept = [line for line in keys.read_text().splitlines() if "DEMO_KEY" not in line]
    keys.write_text("\n".join(kept) + "\n")
    with pytest.raises(BadSetting, match="has no RATOON_DEMO_KEY"):
        load_target(TargetFlags(data_dir=data_dir))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", ""])
def test_a_url_is_http(url: str) -> None:
    with pytest.raises(BadSetting, match="--url"):
        checked_url(url)


@pytest.mark.parametrize("key", ["sk-x\n", "sk-x\r\n", "sk-\u00e9", "sk-\x00"])
def test_a_key_that_no_header_carries_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(BadSetting, match="--admin-key: ") as operator:
        admin_target(AdminFlags(admin_key=key))
    with pytest.raises(BadSetting, match="--key: ") as tenant:
        load_target(TargetFlags(key=key))
    assert "sk-" not in f"{operator.value} {tenant.value}"
