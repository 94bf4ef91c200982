"""The files without which a gateway does not start: its secrets, and the text side of the model.

Whatever is wrong with one of them ends the start with a single line that says so.

Knows: which files there are and every way they can be bad. Does not know: what is made of them
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
    """What they hold. `admin_digest` is the operator's key as it is compared."""

    secrets: Secrets
    admin_digest: bytes
    tokenizer: Tokenizer
    template: ChatTemplate | None


@contextmanager
def needed_to_start() -> Iterator[None]:
    """Within it, a file that cannot be used raises CannotStart."""
    try:
        yield
    except (ModelFileBroken, PrivateFileError, SchemaTooNew, OSError) as error:
        raise CannotStart(str(error)) from error
    except sqlite3.Error as error:
        raise CannotStart(f"a database in the data directory: {error}") from error


def read_start_files(config: GatewayConfig) -> StartFiles:
    """Read them; whatever `needed_to_start` expects may be raised."""
    model_dir, data_dir = Path(config.model_dir), Path(config.data_dir)
    secrets = find_secrets(data_dir, config)
    digest = admin_digest(secrets.pepper, load_admin_key(data_dir))
    return StartFiles(secrets, digest, Tokenizer.load(model_dir), ChatTemplate.load(model_dir))
