"""Which tensors have pages in this process's memory."""

import mmap
import sys

import torch


def pages(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // mmap.PAGESIZE)


def pages_in_memory(tensor: torch.Tensor) -> int:
    """Of a tensor that begins at a page: bit 63 of each page's entry in the page map."""
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(tensor.data_ptr() // mmap.PAGESIZE * 8)
        entries = file.read(8 * pages(tensor))
    return sum(int.from_bytes(entries[i : i + 8], sys.byteorder) >> 63 for i in range(0, len(entries), 8))


def in_memory(tensor: torch.Tensor) -> bool:
    return pages_in_memory(tensor) > 0
