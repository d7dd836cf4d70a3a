"""Log replay: the actions of a log that are in effect ("Action Reconciliation").

Both classes read the log from the newest action to the oldest. The first action of a key survives,
and older actions of the key are superseded. Each result is therefore final and can be passed on at
once; memory grows only with the set of known keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.model import DomainMetadata, Metadata, Protocol, Txn
from delta_maintenance.protocol.columns import Hashes, hash_texts, integers

Positions = npt.NDArray[np.int64]

_INITIAL_BITMAP_SIZE, _MAX_BITMAP_SIZE = 1 << 20, 1 << 24
_SHORT_CHUNK = 1 << 11
"""Number of keys up to which a chunk is copied to merge it with the next one."""


@dataclass(slots=True)
class StateReplay:
    """The newest non-file actions, read from the newest commit to the oldest."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    """Includes removed domains, because they hide older ones."""
    draft_high_water_mark: dict[str, Any] | None = None
    """The last `rowIdHighWaterMark` action of the drafts of 2023, which no release writes."""
    repeated: set[str] = field(default_factory=set)
    """Actions in effect that their commit repeats, named as in `SingleActions.repeated`."""

    def add(
        self,
        *,
        protocol: Protocol | None = None,
        metadata: Metadata | None = None,
        txns: Iterable[Txn] = (),
        domains: Iterable[DomainMetadata] = (),
        draft_high_water_mark: dict[str, Any] | None = None,
        repeated: Iterable[str] = (),
    ) -> None:
        """Adds the actions of a commit, compaction or checkpoint older than all added before."""
        self.repeated |= {name for name in repeated if not self._has(name)}
        self.protocol = self.protocol or protocol
        self.metadata = self.metadata or metadata
        for txn in txns:
            self.txns.setdefault(txn.app_id, txn)
        for domain in domains:
            self.domains.setdefault(domain.domain, domain)
        self.draft_high_water_mark = self.draft_high_water_mark or draft_high_water_mark

    def _has(self, name: str) -> bool:
        match name.partition(" "):
            case "protocol", _, _:
                return self.protocol is not None
            case "metaData", _, _:
                return self.metadata is not None
            case "txn", _, app_id:
                return app_id in self.txns
            case _, _, domain:
                return domain in self.domains

    def present_domains(self) -> dict[str, DomainMetadata]:
        """The domains that were not removed."""
        return {name: domain for name, domain in self.domains.items() if not domain.removed}


class FileReplay:
    """Selects the surviving file actions, batch by batch from the newest to the oldest.

    Hashes narrow the search, and the full keys decide. Two different keys can have the same hash,
    although that is very unlikely. After the first such collision only full keys are compared.
    """

    def __init__(self, *, hash_keys: Callable[[pa.StringArray], Hashes] = hash_texts) -> None:
        self._hash_keys = hash_keys
        self._levels: list[tuple[Hashes, Positions]] = []
        # A bitmap over hashes: recognises most new keys without a search in the levels.
        self._bitmap = np.zeros(_INITIAL_BITMAP_SIZE, np.bool_)
        self._keys: list[pa.StringArray] = []
        self._starts: list[int] = []
        self._count = 0
        self._exact: set[bytes] | None = None

    def __len__(self) -> int:
        """The number of known keys."""
        return sum(len(hashes) for hashes, _ in self._levels) + len(self._exact or ())

    def surviving(
        self,
        keys: pa.StringArray,
        *,
        order: Positions,
        hashes: Hashes | None = None,
        remember: bool = True,
    ) -> Positions:
        """The positions of the rows of a batch that no newer action supersedes, in any order.

        `order` lists the rows from the newest to the oldest. `hashes` are the hashes of the keys,
        if the caller has them. `remember=False` saves the memory for the keys of the last batch,
        because no older batch follows.
        """
        if len(keys) == 0:
            return np.empty(0, np.int64)
        if self._exact is not None:
            return self._surviving_exact(keys, order, remember)
        newest_first = order
        hashes = (self._hash_keys(keys) if hashes is None else hashes)[order]
        # A stable order costs three times as much and is needed for repeated keys only.
        by_hash = np.argsort(hashes)
        ordered = hashes[by_hash]
        repeats = np.append(False, ordered[1:] == ordered[:-1])
        has_repeats = repeats.any()
        if has_repeats:
            by_hash = np.argsort(hashes, kind="stable")
        order = order[by_hash]
        if has_repeats:
            first_rows = order[np.maximum.accumulate(np.where(repeats, 0, np.arange(len(order))))]
            if not _same_texts(keys, order[repeats], keys, first_rows[repeats]):
                return self._switch_to_exact(keys, newest_first, remember)
            order, ordered = order[~repeats], ordered[~repeats]
        candidates = np.flatnonzero(self._bitmap[ordered % len(self._bitmap)])
        survives = np.ones(len(order), bool)
        hits, remembered = [candidates[:0]], [candidates[:0]]
        for level_hashes, level_positions in self._levels:
            at = np.searchsorted(level_hashes, ordered[candidates])
            at[at == len(level_hashes)] = 0
            is_superseded = level_hashes[at] == ordered[candidates]
            hits.append(candidates[is_superseded])
            remembered.append(level_positions[at[is_superseded]])
        hit = np.concatenate(hits)
        if len(hit):
            if not self._same_as_remembered(keys, order[hit], np.concatenate(remembered)):
                return self._switch_to_exact(keys, newest_first, remember)
            survives[hit] = False
        order, ordered = order[survives], ordered[survives]
        if remember:
            self._remember(keys, order, ordered)
        return order

    def _remember(self, keys: pa.StringArray, order: Positions, hashes: Hashes) -> None:
        if not len(order):
            return
        # If most rows survive, the batch is kept as it is: copying texts costs more than memory.
        if 2 * len(order) >= len(keys):
            positions = self._count + order
        else:
            keys, positions = keys.take(integers(order)), self._count + np.arange(len(order))
        # Sorted runs of doubling size, so that each key is merged a logarithmic number of times.
        level = (hashes, positions)
        start = self._count
        self._count += len(keys)
        while self._keys and len(self._keys[-1]) <= min(2 * len(keys), _SHORT_CHUNK):
            keys, start = pa.concat_arrays([self._keys.pop(), keys]), self._starts.pop()
        self._keys.append(keys)
        self._starts.append(start)
        self._add_to_bitmap(hashes)
        while self._levels and len(self._levels[-1][0]) <= 2 * len(level[0]):
            level = _merge(self._levels.pop(), level)
        self._levels.append(level)

    def _add_to_bitmap(self, hashes: Hashes) -> None:
        added = [hashes]
        # Grows once: the fuller the bitmap, the fewer new keys it recognises.
        if 8 * self._count > len(self._bitmap) < _MAX_BITMAP_SIZE:
            self._bitmap = np.zeros(_MAX_BITMAP_SIZE, np.bool_)
            added += [level_hashes for level_hashes, _ in self._levels]
        for hashed in added:
            self._bitmap[hashed % len(self._bitmap)] = True

    def _same_as_remembered(
        self, keys: pa.StringArray, rows: Positions, remembered: Positions
    ) -> bool:
        ascending = np.argsort(remembered)
        rows, remembered = rows[ascending], remembered[ascending]
        bounds = [*np.searchsorted(remembered, self._starts), len(remembered)]
        texts = [
            chunk.take(integers(remembered[begin:end] - start))
            for chunk, start, begin, end in zip(
                self._keys, self._starts, bounds[:-1], bounds[1:], strict=True
            )
            if end > begin
        ]
        return bool(pc.all(pc.equal(pa.concat_arrays(texts), keys.take(integers(rows)))).as_py())

    def _switch_to_exact(self, keys: pa.StringArray, order: Positions, remember: bool) -> Positions:
        remembered = [positions for _, positions in self._levels]
        texts = pa.chunked_array(
            [key_texts.cast(pa.binary()) for key_texts in self._keys], pa.binary()
        )
        survivors = texts.take(pa.array(np.concatenate([np.empty(0, np.int64), *remembered])))
        self._exact = set(survivors.to_pylist())
        self._levels, self._keys, self._starts = [], [], []
        return self._surviving_exact(keys, order, remember)

    def _surviving_exact(self, keys: pa.StringArray, order: Positions, remember: bool) -> Positions:
        assert self._exact is not None
        texts = keys.cast(pa.binary()).to_pylist()
        new_keys: dict[bytes, int] = {}
        for position in order.tolist():
            if texts[position] not in self._exact:
                new_keys.setdefault(texts[position], position)
        if remember:
            self._exact.update(new_keys)
        return np.array(list(new_keys.values()), np.int64)


def _merge(
    one: tuple[Hashes, Positions], right: tuple[Hashes, Positions]
) -> tuple[Hashes, Positions]:
    hashes = np.concatenate([one[0], right[0]])
    order = np.argsort(hashes)  # no hash repeats
    return hashes[order], np.concatenate([one[1], right[1]])[order]


def _same_texts(
    one: pa.StringArray, left_rows: Positions, right: pa.StringArray, right_rows: Positions
) -> bool:
    left_texts, right_texts = one.take(integers(left_rows)), right.take(integers(right_rows))
    return bool(pc.all(pc.equal(left_texts, right_texts)).as_py())
