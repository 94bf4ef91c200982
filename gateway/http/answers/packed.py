"""The answers that are equal for all clients, compressed once."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request, Response

_WORTH_IT = 1024


@dataclass(frozen=True, slots=True)
class Packed:
    """An answer's content, plain and compressed. `packed` is None for small content."""

    plain: bytes
    packed: bytes | None

    @classmethod
    def of(cls, plain: bytes) -> Packed:
        """Compress `plain`, unless it is small."""
        return cls(plain, gzip.compress(plain, mtime=0) if len(plain) >= _WORTH_IT else None)

    def answer(self, request: Request, headers: Mapping[str, str], media_type: str) -> Response:
        """Answer with the content, compressed if the client accepts gzip."""
        if self.packed is None:
            return Response(self.plain, headers=headers, media_type=media_type)
        varies = {**headers, "vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.plain, headers=varies, media_type=media_type)
        varies["content-encoding"] = "gzip"
        return Response(self.packed, headers=varies, media_type=media_type)
