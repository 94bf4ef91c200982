"""The key of Triton's compiler, which a thread computes while the start waits for other work.

Triton finds a compiled kernel on disk by a key that includes a hash of the compiler's 400 MB.
Triton computes the hash when a process looks for its first kernel. A thread that needs the hash
during this time does not wait for it, but computes it again. The threads slow each other down.

    hashed by eight threads    load, dry run | hash x 8        | kernels
    hashed ahead               load, dry run | kernels
                               hash ......
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from triton.runtime import cache


def begin_key(make: Callable[[], str] | None = None) -> Future[str]:
    """Start to compute the key, which all threads can use once the returned future is done.

    `make` computes the key. It is by default Triton's own function, which keeps its result.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="compiler-key")
    key = thread.submit(make or _triton_key())
    thread.shutdown(wait=False)
    return key


def _triton_key() -> Callable[[], str]:
    make: Callable[[], str] = getattr(cache, "triton_key", str)
    return make
