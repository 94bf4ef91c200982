"""The export of a published prefix: its description, its KV in units, and its file's signature.

The command line seals the file.
"""

import hashlib

import msgspec

from engine.link.carrying_messages import ReadPrefix
from engine.link.interface import Engine
from engine.link.messages import pack_token_ids
from gateway.admin.audit import AuditTrail
from gateway.admin.prefixes.prefix_routes import welcome_of
from gateway.errors import BadRequest, NotFound, refusing
from gateway.receipts.erasing import Erasing
from gateway.sharing.published import Published
from gateway.state.records import PrefixSource, PublishedPrefix
from gateway.state.store import Store
from prefix_cache.hashing import TokenIds

DIGEST_BYTES = 32


class ExportedPrefix(msgspec.Struct, frozen=True):
    """Answer of GET /admin/prefixes/{id}/export.

    The file has `blocks` units with KV blocks, then `state_units` units with recurrent states. Each
    unit has `unit_bytes` bytes. Digests are in hex.
    """

    id: str
    name: str
    fingerprint: str
    unit_bytes: int
    blocks: int
    state_units: int
    tokens: int
    tokens_digest: str
    source: PrefixSource


class CarriedOut:
    """The exports of one gateway process. Used in one event loop."""

    def __init__(
        self,
        store: Store,
        published: Published,
        engine: Engine,
        erasing: Erasing,
        audit: AuditTrail,
    ) -> None:
        self._store = store
        self._published = published
        self._engine = engine
        self._erasing = erasing
        self._audit = audit

    async def described(self, prefix_id: str) -> ExportedPrefix:
        """Describe a published prefix.

        Raises NotFound, Conflict if the engine lacks some of its blocks, or GatewayError.
        """
        record, welcome = await self._record(prefix_id), welcome_of(self._engine)
        tokens = await self._published.tokens_of(record.source)
        with refusing():
            shape = await self._engine.ask(ReadPrefix(pin_id=record.id))
        return ExportedPrefix(
            id=record.id,
            name=record.name,
            fingerprint=welcome.fingerprint.hex(),
            unit_bytes=shape.unit_bytes,
            blocks=shape.blocks,
            state_units=shape.state_units,
            tokens=len(tokens),
            tokens_digest=tokens_digest(tokens),
            source=record.source,
        )

    async def units(self, prefix_id: str, first: int, count: int) -> bytes:
        """Read `count` units; raise the errors of `described`, or BadRequest for unknown units."""
        record = await self._record(prefix_id)
        with refusing():
            read = ReadPrefix(pin_id=record.id, first=first, count=count)
            return (await self._engine.ask(read)).payload

    async def signature(self, prefix_id: str, digest: str) -> bytes:
        """Sign the digest of a prefix's file.

        Raises NotFound, or BadRequest for a digest of another length.
        """
        record = await self._record(prefix_id)
        try:
            raw = bytes.fromhex(digest)
        except ValueError:
            raw = b""
        if len(raw) != DIGEST_BYTES:
            raise BadRequest("`digest` must be 32 bytes in hex", param="digest")
        await self._audit.note("prefix.export", record.id, name=record.name, digest=digest)
        return self._erasing.key.sign_file(raw)

    async def _record(self, prefix_id: str) -> PublishedPrefix:
        record = await self._store.get(PublishedPrefix, prefix_id)
        if record.deleted_at is not None:
            raise NotFound("no such prefix")
        return record


def tokens_digest(tokens: TokenIds) -> str:
    """Return the SHA-256 of token ids as int32, in hex."""
    return hashlib.sha256(pack_token_ids(tokens)).hexdigest()
