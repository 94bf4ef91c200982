"""The selection of a request's cookies that this server's pages have set.

The framework would parse all cookies that a browser has for this host. Other servers on the host
may have set cookies, which mean nothing here.
"""

PREFIX = b"ratoon_"
# maximum bytes of a `Cookie` field that is read, since a browser's cookie has at most 4096 bytes,
# and there are two pages
_LONGEST = 8192


def own_cookies(value: bytes) -> bytes:
    """Return the part of a `Cookie` field that this server reads, or b""."""
    if PREFIX not in value or len(value) > _LONGEST:
        return b""
    parts = (part.strip() for part in value.split(b";"))
    return b"; ".join(part for part in parts if part.startswith(PREFIX))
