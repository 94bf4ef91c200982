"""The selection of a request's cookies that this server's pages have set.

The framework would parse all cookies that a browser has for this host. Other servers on the host
may have set some, which mean nothing here.
"""

PREFIX = b"ratoon_"
_LONGEST = 8192  # bytes; a browser sends a cookie of at most 4096 bytes, and there are two pages


def own_cookies(value: bytes) -> bytes:
    """Return the part of a `Cookie` field that this server reads; empty if there is none."""
    if PREFIX not in value or len(value) > _LONGEST:
        return b""
    parts = (part.strip() for part in value.split(b";"))
    return b"; ".join(part for part in parts if part.startswith(PREFIX))
