"""Which pages hold which beginnings of prompts, found by the hashes of blocks of tokens.

A block's hash covers its tokens and the hash of the block before it, so that equal hashes mean equal beginnings. It is
BLAKE2b's and not Python's: who could choose prompts that collide would be answered from another prompt's keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

BLOCK = 16
"""Tokens of a block; divides every page size."""


def block_hash(before: bytes, tokens: list[int]) -> bytes:
    """16 bytes for a block of tokens after the one whose hash is `before`."""
    return blake2b(array("q", tokens).tobytes(), digest_size=16, key=before).digest()


class PrefixIndex:
    """Block hash <-> pages. A page may hold many blocks, and equal blocks may lie in several pages."""

    def __init__(self) -> None:
        self._pages: dict[bytes, dict[int, None]] = {}
        self._blocks: dict[int, list[bytes]] = {}

    def add(self, block: bytes, page: int) -> None:
        """`page` holds `block` now, right after those that were added for it before."""
        self._pages.setdefault(block, {})[page] = None
        self._blocks.setdefault(page, []).append(block)

    def pages(self, block: bytes) -> Iterator[int]:
        """Those that hold `block`, the longest known first."""
        return iter(self._pages.get(block, ()))

    def __contains__(self, block: bytes) -> bool:
        return block in self._pages

    def count(self, page: int) -> int:
        """How many blocks of `page` can be found."""
        return len(self._blocks.get(page, ()))

    def truncate(self, page: int, blocks: int = 0) -> None:
        """Only the first `blocks` blocks of `page` are still there."""
        known = self._blocks.get(page)
        if known is None:
            return
        for block in known[blocks:]:
            holders = self._pages[block]
            del holders[page]
            if not holders:
                del self._pages[block]
        del known[blocks:]
        if not known:
            del self._blocks[page]

    def move(self, source: int, target: int) -> None:
        """What `source` held lies in `target` now, of which nothing was known."""
        known = self._blocks[target] = self._blocks.pop(source)
        for block in known:
            holders = self._pages[block]
            del holders[source]
            holders[target] = None

    def held(self) -> Iterator[int]:
        """Every page that holds a block."""
        return iter(self._blocks)
