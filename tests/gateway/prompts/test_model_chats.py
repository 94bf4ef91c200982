"""The memory of a process that has read a model's tokenizer."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from string import ascii_letters

import pytest
import tokenizers

NUM_MERGES = 60_000
SCRIPT = """
import os, sys
from pathlib import Path
import tokenizers
from gateway.prompts.chats.template_variables import ChatSettings
from gateway.prompts.model_chats import read_chats
from tests.doubles.processes import private_mib

model_dir = Path(sys.argv[1])
FILE = str(model_dir / "tokenizer.json")
before = private_mib(os.getpid())
read = {read}
print(private_mib(os.getpid()) - before)
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tokenizer whose tokens are all letters and many words of two or three letters."""
    pairs = [(first, second) for first in ascii_letters for second in ascii_letters]
    longer = (("".join(pair), last) for pair in pairs for last in ascii_letters)
    merges = [*pairs, *islice(longer, NUM_MERGES - len(pairs))]
    tokens = [*ascii_letters, *map("".join, merges)]
    model = tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges)
    written = tokenizers.Tokenizer(model)
    written.decoder = tokenizers.decoders.ByteLevel()
    directory = tmp_path_factory.mktemp("model")
    written.save(str(directory / "tokenizer.json"))
    return directory


def mib_of(read: str, model_dir: Path) -> float:
    run = [sys.executable, "-c", SCRIPT.format(read=read), str(model_dir)]
    return float(subprocess.run(run, capture_output=True, check=True, timeout=60).stdout)


def test_memory_that_the_library_has_freed_is_returned(model_dir: Path) -> None:
    """Keep less memory than the library alone, although more than the tokenizer is read."""
    ours = mib_of("read_chats(model_dir, ChatSettings())", model_dir)
    assert ours < 0.7 * mib_of("tokenizers.Tokenizer.from_file(FILE)", model_dir)
