"""Prefixes are exported and imported. An import that does not fit publishes nothing."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from engine.errors import EngineError, EngineUnavailable, NoRoomToPin
from engine.link.carrying_messages import EndImport
from engine.link.messages import pack_token_ids
from gateway.receipts.signing import is_file_signed
from gateway.state.records import PrefixSource
from tests.gateway.admin.office import Office, body, error_of, tiny_tokens

TEXT = "Be brief and kind to all who ask."


async def exported(office: Office) -> dict[str, Any]:
    made = body(await office.operator.post("/admin/prefixes", json={"name": "r", "text": TEXT}))
    return body(await office.operator.get(f"/admin/prefixes/{made['id']}/export"))


def imported(found: dict[str, Any], **changed: Any) -> dict[str, Any]:
    names = ("fingerprint", "unit_bytes", "blocks", "state_units", "tokens_digest", "source")
    return {name: found[name] for name in names} | changed


async def test_an_export_describes_the_prefix(office: Office) -> None:
    found = await exported(office)
    tokens = tiny_tokens().of(PrefixSource(text=TEXT))
    assert found["tokens"] == len(tokens)
    assert found["tokens_digest"] == hashlib.sha256(pack_token_ids(tokens)).hexdigest()
    assert found["fingerprint"] == bytes(range(16)).hex()
    assert found["source"]["text"] == TEXT
    answer = await office.operator.get(f"/admin/prefixes/{found['id']}/units?first=1&count=2")
    assert answer.content == office.engine.unit * 2


async def test_a_signature_is_of_the_installation_and_noted(office: Office) -> None:
    found = await exported(office)
    digest = hashlib.sha256(b"file").hexdigest()
    path = f"/admin/prefixes/{found['id']}/signature"
    signed = body(await office.operator.post(path, json={"digest": digest}))["signature"]
    key = body(await office.operator.get("/admin/receipts/key"))["public_key"]
    raw = base64.b64decode(signed)
    assert is_file_signed(bytes.fromhex(digest), raw, key)
    assert not is_file_signed(hashlib.sha256(b"other").digest(), raw, key)
    [entry, *_] = body(await office.operator.get("/admin/audit"))["entries"]
    assert (entry["action"], entry["target"]) == ("prefix.export", found["id"])
    for bad in ("", "00", "x" * 64):
        refused = await office.operator.post(path, json={"digest": bad})
        assert error_of(refused) == (400, "invalid_value", "digest")


async def test_an_import_is_begun_written_and_published(office: Office) -> None:
    found = await exported(office)
    begun = body(await office.operator.post("/admin/imports", json=imported(found)))
    path = f"/admin/imports/{begun['id']}"
    written = await office.operator.put(f"{path}/units?first=0", content=office.engine.unit)
    assert written.status_code == 200
    end = {"name": "theirs", "source": found["source"]}
    made = await office.operator.post(f"{path}/end", json=end)
    assert made.status_code == 201
    names = [one["name"] for one in body(await office.operator.get("/admin/prefixes"))["prefixes"]]
    assert sorted(names) == ["r", "theirs"]
    actions = [one["action"] for one in body(await office.operator.get("/admin/audit"))["entries"]]
    assert actions[:2] == ["prefix.import", "prefix.create"]


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"fingerprint": "00" * 16}, 409),
        ({"tokens_digest": "00" * 32}, 409),
        ({"source": {"text": TEXT + "!"}}, 409),
        ({"blocks": 1}, 409),
        ({"blocks": 0}, 409),
        ({"scope": "gr_none"}, 404),
        ({"blocks": -1}, 400),
        ({"unit_bytes": 1 << 70}, 400),
        ({"source": {"text": 1}}, 400),
        ({"more": 1}, 400),
    ],
    ids=str,
)
async def test_what_does_not_fit_here_is_refused(
    office: Office, changed: dict[str, Any], status: int
) -> None:
    found = await exported(office)
    answer = await office.operator.post("/admin/imports", json=imported(found, **changed))
    assert error_of(answer)[0] == status
    assert office.engine.imports == []
    control = await office.operator.post("/admin/imports", json=imported(found))
    assert control.status_code == 201


@pytest.mark.parametrize("error", [None, NoRoomToPin("full"), EngineUnavailable("gone")])
async def test_a_refused_import_gives_up_its_place_in_other_engines(
    office: Office, error: EngineError | None
) -> None:
    found = await exported(office)
    office.engine.import_error = error
    answer = await office.operator.post("/admin/imports", json=imported(found))
    begun, *given_up = office.engine.imports
    if error is None:
        assert (answer.status_code, given_up) == (201, [])
    else:
        assert error_of(answer)[0] == 503
        assert given_up == [EndImport(import_id=begun.import_id, is_kept=False)]


@pytest.mark.parametrize("place", ["-1", str(1 << 40)])
async def test_a_place_that_no_unit_has_is_refused(office: Office, place: str) -> None:
    found = await exported(office)
    path = f"/admin/prefixes/{found['id']}/units"
    assert error_of(await office.operator.get(f"{path}?first={place}"))[0] == 400
    assert error_of(await office.operator.get(f"{path}?count={place}"))[0] == 400
    answer = await office.operator.put(f"/admin/imports/im_x/units?first={place}", content=b"x")
    assert error_of(answer)[0] == 400


async def test_a_prefix_that_is_not_there_is_not_exported(office: Office) -> None:
    found = await exported(office)
    await office.operator.delete(f"/admin/prefixes/{found['id']}")
    for name in (found["id"], "px_none"):
        for path in ("export", "units"):
            answer = await office.operator.get(f"/admin/prefixes/{name}/{path}")
            assert error_of(answer)[0] == 404
