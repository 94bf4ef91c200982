"""The installation's two secrets: the server secret, for namespaces, and the pepper of keys.

A single gateway creates the secrets itself, in a file of its data directory. Several gateways must
have the same secrets, so the deployment provides files of one directory (`/run/secrets` in Docker).
SERVER_SECRET and PEPPER are a line of at least 32 characters each (`openssl rand -hex 32`).
ADMIN_KEY is the operator's key.

Without the secrets every key is invalid and no cached KV block can be found. Secrets are never
created anew for an old installation (`first_start`).
"""

import secrets
from pathlib import Path

import msgspec

from gateway.errors import BadRequest
from gateway.http.bodies.names import check_all_names
from gateway.state.private_file import (
    PrivateFileDamaged,
    create_private,
    read_handed_in,
    read_private,
)

SECRETS_FILE = "secrets.json"
SECRET_BYTES = 32
SERVER_SECRET = "ratoon_server_secret"
PEPPER = "ratoon_pepper"
ADMIN_KEY = "ratoon_admin_key"


class Secrets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secrets of namespaces (`server_secret`) and of key digests (`pepper`), 32 bytes each.

    The file holds both as JSON, in base64.
    """

    server_secret: bytes
    pepper: bytes

    def __repr__(self) -> str:
        return "Secrets(server_secret=********, pepper=********)"


def load_secrets(data_dir: Path) -> Secrets:
    """Read the secrets; raise FileMissing, FileExposed or PrivateFileDamaged."""
    path = data_dir / SECRETS_FILE
    try:
        content = read_private(path)
        found = msgspec.json.decode(content, type=Secrets)
        check_all_names(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadRequest):
        raise PrivateFileDamaged(
            f"{path} is not a secrets file; restore it from a backup"
        ) from None
    if len(found.server_secret) < SECRET_BYTES or len(found.pepper) < SECRET_BYTES:
        raise PrivateFileDamaged(f"{path} holds a secret shorter than {SECRET_BYTES} bytes")
    return found


def load_or_create_secrets(data_dir: Path) -> Secrets:
    """Load the secrets of `data_dir`, or create random secrets if there are none yet.

    Several processes that start at once get the same secrets. Raises FileExposed or
    PrivateFileDamaged for an unusable file, which is never overwritten.
    """
    path = data_dir / SECRETS_FILE
    if not path.exists():
        made = Secrets(secrets.token_bytes(SECRET_BYTES), secrets.token_bytes(SECRET_BYTES))
        create_private(path, msgspec.json.encode(made) + b"\n")
    return load_secrets(data_dir)


def handed_in_secrets(secrets_dir: Path) -> Secrets:
    """Read the secrets shared by several gateways; raise PrivateFileError or OSError."""
    return Secrets(_handed_in(secrets_dir / SERVER_SECRET), _handed_in(secrets_dir / PEPPER))


def handed_in_admin_key(secrets_dir: Path) -> str:
    """Read the operator's key shared by several gateways; raise PrivateFileError or OSError."""
    return read_handed_in(secrets_dir / ADMIN_KEY)


def _handed_in(path: Path) -> bytes:
    secret = read_handed_in(path).encode()
    if len(secret) < SECRET_BYTES:
        raise PrivateFileDamaged(f"{path} holds fewer than {SECRET_BYTES} characters")
    return secret
