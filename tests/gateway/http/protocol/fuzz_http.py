"""Raw bytes against a connection in memory, made up by libFuzzer from what code they reach.

    python -m tests.gateway.http.protocol.fuzz_http [CORPUS] -max_total_time=3600

CORPUS is a directory in which finds are kept; options are libFuzzer's, and `--planted=NAME` takes a
connection of `planted.py`. Whatever breaks one of `http_oracles` ends it with status 77 and leaves
the bytes in a file `crash-...`; give that file in the place of CORPUS to run it again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gateway", "uvicorn.protocols.http.httptools_impl"]):
    from gateway.http.protocol.connection import connection_within

from tests.gateway.http.protocol.exchange import BOUNDS, DIALECTS
from tests.gateway.http.protocol.http_oracles import check
from tests.gateway.http.protocol.http_seeds import SEEDS, WORDS
from tests.gateway.http.protocol.planted import PLANTED

_PLANTED = "--planted="


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    logging.disable()
    loop, kind = asyncio.new_event_loop(), connection_within(BOUNDS, DIALECTS)
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith(_PLANTED)]
    for argument in set(sys.argv[1:]) - set(arguments):
        kind = PLANTED[argument.removeprefix(_PLANTED)]

    def one_input(data: bytes) -> None:
        loop.run_until_complete(check(kind, data))

    with tempfile.TemporaryDirectory() as directory:
        seeds, words = Path(directory) / "seeds", Path(directory) / "words"
        seeds.mkdir()
        for name, seed in SEEDS.items():
            (seeds / name).write_bytes(seed)
        words.write_text("".join(f'"{word}"\n' for word in WORDS))
        options = [f"-dict={words}", "-max_len=2048", "-timeout=30"]
        is_rerun = any(Path(argument).is_file() for argument in arguments)
        own = [] if is_rerun else [str(seeds)]
        atheris.Setup([sys.argv[0], *options, *arguments, *own], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
