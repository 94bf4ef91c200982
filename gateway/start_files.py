"""The files that a gateway needs to start: its secrets, the model's tokenizer and chat template.

If one of them is missing or damaged, the start ends with a single line that says so.

Knows: which files there are and how each can be unusable. Does not know: what they are used for
(`main.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.chat_template import ChatTemplate
from gateway.config import GatewayConfig
from gateway.first_start import admin_digest, find_secrets, load_admin_key
from gateway.private_file import PrivateFileError
from gateway.secrets import Secrets
from gateway.state.sqlite_schema import SchemaTooNew
from gateway.tokenizer import ModelFileBroken, Tokenizer


class CannotStart(Exception):
    """A file that the gateway needs is missing, damaged or open to others."""


@dataclass(frozen=True, slots=True)
class StartFiles:
    """Their contents. `admin_digest` is the digest of the operator's key."""

    secrets: Secrets
    admin_digest: bytes
    tokenizer: Tokenizer
    template: ChatTemplate | None


@contextmanager
def needed_to_start() -> Iterator[None]:
    """Turn the errors of unusable files into CannotStart."""
    try:
        yield
    except (ModelFileBroken, PrivateFileError, SchemaTooNew, OSError) as error:
        raise CannotStart(str(error)) from error
    except sqlite3.Error as error:
        raise CannotStart(f"a database in the data directory: {error}") from error


def read_start_files(config: GatewayConfig) -> StartFiles:
    """Read them; raises the errors that `needed_to_start` translates."""
    model_dir, data_dir = Path(config.model_dir), Path(config.data_dir)
    secrets = find_secrets(data_dir, config)
    digest = admin_digest(secrets.pepper, load_admin_key(data_dir))
    return StartFiles(secrets, digest, Tokenizer.load(model_dir), ChatTemplate.load(model_dir))
