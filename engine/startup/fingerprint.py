"""The fingerprint of everything that a KV block's bits depend on, as 32 bytes.

A model never reads blocks with another fingerprint, since namespaces are derived from fingerprints.
Weights are digested by xxh3, which is fast and shows accidental changes. xxh3 is no cryptographic
hash, but whoever can forge weights controls the machine anyway.
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

# The version of a block's byte order. It increases whenever that order changes.
LAYOUT_VERSION = 1
DIGEST_BYTES = 16

# The fields that do not change the bits of a block: stop tokens, the files' dtype and tensor names.
NOT_IN_BLOCKS = ("eos_token_ids", "dtype", "names", "possible_head")


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """Everything that the bits of a KV block depend on.

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
                del fields["kv"][part]  # blocks without such parts keep their old fingerprint
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
    """Digest the names and bytes of the model checkpoint's safetensors files. Raises ModelError."""
    files = weight_files(model_dir)
    with ThreadPoolExecutor() as pool:
        digests = list(pool.map(_file_digest, files))
    named = [(path.name, digest) for path, digest in zip(files, digests, strict=True)]
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(named))


def dummy_digest(seed: int) -> bytes:
    """Return the digest of the dummy weights of `seed`."""
    return xxhash.xxh3_128_digest(f"dummy {seed}".encode())


def tokenizer_digest(model_dir: Path) -> bytes:
    """Digest tokenizer.json, or no bytes without the file."""
    path = model_dir / "tokenizer.json"
    return _file_digest(path) if path.exists() else xxhash.xxh3_128_digest(b"")


def _digest(fields: dict[str, Any]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).digest()


def _file_digest(path: Path) -> bytes:
    with opened(path) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).digest()
