"""Who owns which page of the KV cache, and what can be used again: bookkeeping without a tensor.

A sequence's positions lie in pages of `page_size`, named in order by its table. In the plugin form of the graph a page
is a few dozen positions; in the native form it is a slot, a row of the static cache as long as the longest sequence, so
that a table has one page and all that follows holds for both.

A page is free, or somebody's, or held: nobody's, but its keys and values are those of a known beginning of a prompt and
serve the next one that begins so. Pages are shared only when they are full; of a page that fits in part the fitting
positions are copied before they are written behind (`Copy`), or, if nobody uses it, it is taken over.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from .errors import OutOfPages
from .eviction import LruK
from .prefixes import BLOCK, PrefixIndex, block_hash

NEVER = 1 << 62


@dataclass(slots=True, eq=False)
class Table:
    """One sequence's place in the cache. It outlives preemption: its tokens, and so their hashes, stay."""

    tokens: list[int]
    """Prompt and answer; the sequence appends to it."""
    salt: bytes = b""
    """Beginnings are alike only under the same salt."""
    pages: list[int] = field(default_factory=list)
    length: int = 0
    """Filled positions: where the next token's keys and values go."""
    room: int = 0
    """Positions of all its pages."""
    next_block: int = NEVER
    """At this length another block can be found by others."""
    hashes: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `rows` positions of page `source` are to be copied to page `target` before the step."""

    source: int
    target: int
    rows: int


class KVCache:
    """`pages` pages of `page_size` positions.

    `reuse` False forgets what a sequence leaves at once; a model whose keys depend on the length of the sequence that
    they were computed for has no use for them. `together` keeps the pages in use near each other, and moves what is
    held for it: a step of the native form computes every slot from the first to the last one in use.
    """

    def __init__(self, pages: int, page_size: int, *, reuse: bool = True, together: bool = False) -> None:
        """Raises ValueError for a page size that blocks of tokens do not fill."""
        if reuse and page_size % BLOCK:
            raise ValueError(f"pages of {page_size} positions are not made of blocks of {BLOCK}")
        self.pages, self.page_size, self._reuse, self._together = pages, page_size, reuse, together
        self._free = list(range(pages))
        self._owners = [0] * pages
        self._index = PrefixIndex()
        self._held = LruK()

    @property
    def available(self) -> int:
        """Pages that can be had: free ones, and held ones that would be given up."""
        return len(self._free) + len(self._held)

    @property
    def used(self) -> int:
        """Pages that somebody owns."""
        return self.pages - self.available

    @property
    def held(self) -> int:
        """Pages that nobody owns and whose content can be found."""
        return len(self._held)

    def needed(self, length: int) -> int:
        """Pages of a sequence of so many positions."""
        return -(-length // self.page_size)

    def open(self, table: Table, now: float) -> list[Copy]:
        """Give a table without pages those for all its tokens, the first of them filled as far as they are known.

        Returns what must be copied before the next step. Raises OutOfPages, and then nothing has changed.
        """
        assert not table.pages, "the table has pages already"
        blocks = self._matching(table)
        whole, rest = divmod(blocks * BLOCK, self.page_size)
        per_page = self.page_size // BLOCK if self._reuse else 1
        shared = [self._holder(table.hashes[(page + 1) * per_page - 1]) for page in range(whole)]
        partial = self._partial(table.hashes[blocks - 1], rest) if rest else None
        fresh = self.needed(len(table.tokens)) - whole
        revived = sum(1 for page in shared if page in self._held)
        if fresh > self.available - revived:
            raise OutOfPages(f"{fresh} pages are needed and {self.available - revived} of {self.pages} can be had")
        for page in shared:
            self._own(page)
        copies: list[Copy] = []
        table.pages = shared
        if partial is not None and self._takes_over(partial, rest):
            self._own(partial)
            self._index.truncate(partial, rest // BLOCK)
            table.pages.append(partial)
            fresh -= 1
        elif partial is not None:
            target = self._take(now)  # a free one, or `partial` is somebody's: it cannot be given up for this
            target = self._nearer(target, now, copies, keep=partial)
            copies.append(Copy(partial, target, rest))
            for block in table.hashes[blocks - rest // BLOCK : blocks]:
                self._index.add(block, target)
            table.pages.append(target)
            fresh -= 1
        table.pages.extend(self._nearer(self._take(now), now, copies) for _ in range(fresh))
        table.length = blocks * BLOCK
        table.room = len(table.pages) * self.page_size
        table.next_block = table.length + BLOCK if self._reuse else NEVER
        return copies

    def extend(self, table: Table, now: float) -> None:
        """One page more; raises OutOfPages if there is none."""
        table.pages.append(self._take(now))
        table.room += self.page_size

    def register(self, table: Table) -> None:
        """Let others find the blocks that were filled since the last time."""
        while table.next_block <= table.length:
            block = table.next_block // BLOCK - 1
            self._hash(table, block + 1)
            self._index.add(table.hashes[block], table.pages[block * BLOCK // self.page_size])
            table.next_block += BLOCK

    def close(self, table: Table, now: float, priority: int) -> None:
        """The sequence does not run any more; what can be found of it is held as long as there is room."""
        for depth, page in enumerate(table.pages):
            self._owners[page] -= 1
            if self._owners[page]:
                self._held.use(page, now, priority, depth)
            elif self._index.count(page):
                self._held.add(page, now, priority, depth)
            else:
                heapq.heappush(self._free, page)
        self._empty(table)

    def discard(self, table: Table) -> list[int]:
        """As `close`, after a step that went wrong: what the sequence alone owned is neither found nor trusted.

        Returns those pages, which may hold numbers that are not finite.
        """
        own = [page for page in table.pages if self._owners[page] == 1]
        for page in table.pages:
            self._owners[page] -= 1
        for page in own:
            self._index.truncate(page)
            self._held.forget(page)
            heapq.heappush(self._free, page)
        self._empty(table)
        return own

    def distrust(self, page: int) -> None:
        """What was to be copied to `page` is not there: if nobody owns it, it is free."""
        if page in self._held:
            self._give_up(page)
            heapq.heappush(self._free, page)

    def check(self, tables: list[Table]) -> None:
        """Raise AssertionError unless every page is free, held or owned as often as it stands in one of `tables`."""
        owners = [0] * self.pages
        for table in tables:
            for page in table.pages:
                owners[page] += 1
            assert table.room == len(table.pages) * self.page_size, "a table's room is not that of its pages"
            assert table.length <= table.room, "a table is longer than its pages"
            assert table.length <= len(table.tokens), "a table holds tokens that its sequence does not have"
            assert len(set(table.pages)) == len(table.pages), "a table has a page twice"
            written = table.pages[table.length // self.page_size :]
            assert all(owners[page] <= 1 or self._owners[page] == 1 for page in written), "a shared page is not full"
        assert owners == self._owners, "a page's owners are not those whose tables name it"
        free, held = set(self._free), {page for page in range(self.pages) if page in self._held}
        owned = {page for page, count in enumerate(owners) if count}
        assert len(free) == len(self._free) and len(held) == len(self._held), "a page is free or held twice"
        assert not (free & held or free & owned or held & owned), "a page is in two states"
        assert len(free) + len(held) + len(owned) == self.pages, "a page is lost"
        findable = set(self._index.held())
        assert held <= findable, "a held page holds nothing"
        assert not findable & free, "a free page can be found"

    def _matching(self, table: Table) -> int:
        """The number of the table's blocks that are in the cache."""
        if not self._reuse:
            return 0
        most = (len(table.tokens) - 1) // BLOCK
        blocks = 0
        while blocks < most:
            self._hash(table, blocks + 1)
            if table.hashes[blocks] not in self._index:
                break
            blocks += 1
        return blocks

    def _hash(self, table: Table, blocks: int) -> None:
        while len(table.hashes) < blocks:
            start = len(table.hashes) * BLOCK
            before = table.hashes[-1] if table.hashes else table.salt
            table.hashes.append(block_hash(before, table.tokens[start : start + BLOCK]))

    def _holder(self, block: bytes) -> int:
        return next(self._index.pages(block))

    def _partial(self, block: bytes, rows: int) -> int:
        """The page whose first `rows` positions end with `block`: best one that can be taken over."""
        pages = list(self._index.pages(block))
        return min(pages, key=lambda page: (not self._takes_over(page, rows), page not in self._held))

    def _takes_over(self, page: int, rows: int) -> bool:
        """Whether to write on in a page that nobody uses, behind its first `rows` positions, and lose what it holds
        there: if that is less than what would be copied, or if a copy would cost another page what it holds."""
        lost = self._index.count(page) * BLOCK - rows
        return page in self._held and (lost <= rows or not self._free)

    def _own(self, page: int) -> None:
        if self._owners[page] == 0:
            self._held.take(page)
        self._owners[page] += 1

    def _take(self, now: float) -> int:
        """A page for a new owner. The lowest free one, so that what is in use stays together."""
        if self._free:
            page = heapq.heappop(self._free)
        elif len(self._held):
            page = self._held.oldest(now)
            self._give_up(page)
        else:
            raise OutOfPages(f"all {self.pages} pages are in use")
        self._owners[page] = 1
        return page

    def _give_up(self, page: int) -> None:
        self._held.take(page)
        self._held.forget(page)
        self._index.truncate(page)

    def _nearer(self, page: int, now: float, copies: list[Copy], keep: int | None = None) -> int:
        """In place of `page`, which was taken, the one that lies nearest to those in use; what that holds moves to
        `page`, but not what `keep` holds."""
        if not self._together:
            return page
        others = [other for other, owners in enumerate(self._owners) if owners and other != page]
        if not others:
            return page

        def cost(candidate: int) -> tuple[int, int, int]:
            moved = self._index.count(candidate) if candidate != page else 0
            return max(others[-1], candidate) - min(others[0], candidate), moved, candidate

        held = (other for other in range(self.pages) if other in self._held and other != keep)
        nearest = min((page, *self._free, *held), key=cost)
        if nearest == page:
            return page
        if nearest in self._held:
            copies.append(Copy(nearest, page, self._index.count(nearest) * BLOCK))
            self._index.move(nearest, page)
            self._held.move(nearest, page, now)
        else:
            self._free[self._free.index(nearest)] = page
            heapq.heapify(self._free)
        self._owners[page], self._owners[nearest] = 0, 1
        return nearest

    @staticmethod
    def _empty(table: Table) -> None:
        table.pages, table.length, table.room, table.next_block = [], 0, 0, NEVER
