"""`/docs` of a running gateway is served without a key, unless a flag disables it."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import Served, config_of, serving

BUNDLE = "/docs/vendor/swagger-ui-bundle.js"


def test_it_is_served_without_a_key_and_lets_nothing_else_in(served: Served) -> None:
    answer = httpx.get(f"{served.url}/docs")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe" not in policy
    for path in ("/docs/api.js", "/docs/api.css", "/docs/vendor/swagger-ui.css", BUNDLE):
        assert path in answer.text
        assert httpx.get(served.url + path).status_code == 200, path
    assert httpx.get(f"{served.url}/docs/none.js").status_code == 404


def test_what_is_kept_compressed_is_sent_so(served: Served) -> None:
    for takes in ("gzip", "identity"):
        packed = httpx.get(served.url + BUNDLE, headers={"accept-encoding": takes})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["content-type"].startswith("text/javascript")
        assert int(packed.headers["content-length"]) < len(packed.content) / 3, "it was unpacked"
        assert b"SwaggerUIBundle" in packed.content
        held = {"if-none-match": packed.headers["etag"]}
        assert httpx.get(served.url + BUNDLE, headers=held).status_code == 304


def test_a_flag_takes_it_away(tiny_model: Path, tmp_path: Path) -> None:
    with serving(config_of(tiny_model, tmp_path / "data", docs=False), FakeEngine()) as bare:
        assert httpx.get(f"{bare.url}/docs").status_code == 404
        assert httpx.get(bare.url + BUNDLE).status_code == 404
        assert httpx.get(f"{bare.url}/openapi.json").status_code == 200
