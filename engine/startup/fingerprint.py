"""The fingerprint: 32 bytes that identify everything on which a KV block's bits depend.

A model never reads blocks with another fingerprint, because namespaces are derived from
fingerprints. Weights are hashed with xxh3, which is fast and detects accidental changes. xxh3 is
not a cryptographic hash, but an attacker who can forge weights controls the machine anyway.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from engine.models.checkpoints.weight_files import weight_files
from engine.models.config import ModelConfig
from engine.models.model_files import opened
from storage.layouts.kv_layout import KvLayout

# The version of the order of bytes in a block. Increase it whenever that order changes.
LAYOUT_VERSION = 1
DIGEST_BYTES = 16

# The fields of the config that do not affect the bits of a block: stop tokens, the files' dtype,
# tensor names and others.
NOT_IN_BLOCKS = ("eos_token_ids", "dtype", "names", "possible_head")


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """Everything on which the bits of a KV block depend.

    `weights` and `tokenizer` are digests. `numerics` names the kernels and their version.
    """

    weights: bytes
    model: ModelConfig
    tokenizer: bytes
    weight_dtype: str
    kv: KvLayout
    numerics: str
    layout_version: int = LAYOUT_VERSION

    def fingerprint(self) -> bytes:
        """Return 32 bytes that differ when any of these fields differs."""
        fields = self._fields()
        for part in ("slice", "stage"):
            if fields["kv"][part] is None:
                # The condition gives blocks without these parts the same fingerprint as in earlier
                # releases.
                del fields["kv"][part]
        if fields["model"].get("draft_head") is None:
            fields["model"].pop("draft_head", None)
        return _digest(fields)

    def _fields(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["model"] = {
            name: value for name, value in fields["model"].items() if name not in NOT_IN_BLOCKS
        }
        return fields


def weights_digest(model_dir: Path) -> bytes:
    """Hash the names and bytes of the model checkpoint's safetensors files. Raises ModelError."""
    files = weight_files(model_dir)
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(_file_digest, files))
    named = [(path.name, digest) for path, digest in zip(files, digests, strict=True)]
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(named))


def dummy_digest(seed: int) -> bytes:
    """Return the digest that stands for dummy weights made from `seed`."""
    return xxhash.xxh3_128_digest(f"dummy {seed}".encode())


def tokenizer_digest(model_dir: Path) -> bytes:
    """Hash tokenizer.json, or no bytes if the file is missing."""
    path = model_dir / "tokenizer.json"
    return _file_digest(path) if path.exists() else xxhash.xxh3_128_digest(b"")


def _digest(fields: dict[str, Any]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).digest()


def _file_digest(path: Path) -> bytes:
    with opened(path) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).digest()
