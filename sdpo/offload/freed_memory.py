"""Memory that the process has freed and the C library still holds for it."""

from __future__ import annotations

import ctypes
from functools import cache

WORTH_IT = 128 * 2**20  # bytes; what comes back into use is paid for page by page


class _Statistics(ctypes.Structure):
    """struct mallinfo2 of glibc, from 2.33 on."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim") or not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _Statistics
    return library


def give_back_freed_memory() -> None:
    """Hands the freed pages of the heap back to the system, wherever they lie between others. Activations leave
    hundreds of MiB, too scattered for moments and gradients. Where it is little, or without glibc, nothing
    happens."""
    library = _glibc()
    if library is not None and library.mallinfo2().fordblks >= WORTH_IT:
        library.malloc_trim(0)
