"""The prevention of core dumps, which contain prompts and keys."""

from __future__ import annotations

import resource


def prevent_core_dumps() -> None:
    """Prevent core dumps of this process and its children when they crash.

    The limit is 1 byte, not 0. If dumps are piped to a program, Linux ignores every limit except
    the special value 1 (fs/coredump.c).
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 0 if hard == 0 else 1
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
