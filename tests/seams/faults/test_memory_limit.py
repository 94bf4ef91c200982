"""A server whose processes may use only little memory serves with a small cache."""

from __future__ import annotations

from pathlib import Path

from tests.seams.support.server import Server, running_server

LIMIT = 1536 << 20  # limit of address space in bytes; torch alone maps half of it
BLOCK_BYTES = 128 << 10  # bytes of a KV block of the embedded model


def answer(server: Server) -> str | None:
    said = "The support code for Berlin is 4821. " * 20
    reply = server.openai().chat.completions.create(
        model="handbook",
        temperature=0,
        messages=[
            {"role": "system", "content": said},
            {"role": "user", "content": "What is the support code for Berlin?"},
        ],
    )
    return reply.choices[0].message.content


def test_the_cache_is_sized_within_a_limit_that_is_set(server: Server, tmp_path: Path) -> None:
    by_free_memory = {"RATOON_CACHE_TOKENS": ""}
    within = ["prlimit", f"--as={LIMIT}"]
    with running_server(tmp_path / "data", by_free_memory, within) as small:
        engine = small.children()["engine"]
        assert 1 <= small.pool()["total"] * BLOCK_BYTES <= LIMIT // 4
        assert answer(small) == answer(server)
        assert small.children()["engine"] == engine
