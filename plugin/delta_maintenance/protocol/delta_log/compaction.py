"""Reconciling a range of commits on its own, without the state that it builds on.

Implements the content of "Log Compaction Files". What stands at the end of the range is kept,
whatever its age: a remove still has to hide a file from before the range, a removed domain an older
one, and whether a transaction has expired is for the reader of the state to say. Only what the
protocol keeps out of such files is left out: `commitInfo`, change data files, and what only
checkpoints hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from delta_maintenance.errors import RefusedError
from delta_maintenance.protocol.columns.key_hash import Hashes
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.ndjson.line_buffers import TextLines
from delta_maintenance.protocol.ndjson.raw_lines import FileActionLines, SingleLines, read_lines
from delta_maintenance.protocol.ndjson.split import parse_line

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class RangeContent:
    """What a range comes to: two ranges of equal content do the same to every state before them."""

    adds: int = 0
    removes: int = 0
    keys: int = 0
    """The sum of the hashes of all logical files, modulo 2^64, removes told apart from adds."""
    singles: dict[tuple[str, str], object] = field(default_factory=dict)
    """The newest of every other action, without nulls, by its name and what tells it from others
    of that name."""

    def count(self, hashes: Hashes, is_remove: Bools) -> None:
        """Takes in file actions, by the hashes of their keys."""
        removes = int(is_remove.sum())
        self.removes += removes
        self.adds += len(is_remove) - removes
        weights = np.where(is_remove, np.uint64(3), np.uint64(1))
        total = np.add.reduce(hashes * weights, dtype=np.uint64)
        self.keys = (self.keys + int(total)) % 2**64

    def add(self, other: RangeContent) -> None:
        """Takes in what another part of the same range comes to."""
        self.adds += other.adds
        self.removes += other.removes
        self.keys = (self.keys + other.keys) % 2**64
        self.singles.update(other.singles)

    @property
    def actions(self) -> int:
        """How many lines that makes."""
        return self.adds + self.removes + len(self.singles)


class RangeReplay:
    """Reconciles files of the log, fed from the newest to the oldest, into lines of text."""

    def __init__(self) -> None:
        self.content = RangeContent()
        self.superseded = 0
        """File actions that did not stand."""
        self.single_texts: dict[tuple[str, str], bytes] = {}
        """The newest of every other action, as a line each."""
        self._replay = FileReplay()

    def offer(self, batch: TextLines) -> FileActionLines:
        """The file actions that stand, of files that are older than all before, newest first.

        `CorruptTableError` where a line cannot be read. `RefusedError` where a file holds two
        actions for one key, so that nobody can tell which of them stands, or an action that would
        be lost.
        """
        files = batch.files.names
        lines, singles = read_lines(batch)
        for file, found in zip(files, singles, strict=True):
            _require_carried(file, found)
            for key, text in found.texts:
                if key not in self.single_texts:
                    self.single_texts[key] = text
                    self.content.singles[key] = single_value(text)
        order = np.argsort(lines.source, kind="stable")
        stands = np.zeros(len(order), bool)
        hashes = lines.keys.hashes()
        stands[self._replay.offer(lines.keys.array(), order=order, hashes=hashes)] = True
        if not stands.all():
            _require_single(lines, hashes, stands, files)
            self.superseded += int((~stands).sum())
        standing = lines.filter(stands)
        self.content.count(hashes[stands], standing.is_remove)
        return standing


def content_of(text: TextLines) -> RangeContent:
    """What reconciled lines come to."""
    content = RangeContent()
    lines, singles = read_lines(text)
    content.count(lines.keys.hashes(), lines.is_remove)
    content.singles = {key: single_value(line) for found in singles for key, line in found.texts}
    return content


def single_value(line: bytes) -> object:
    """What the line of any other action says, for `RangeContent.singles`."""
    return _without_nulls(parse_line(line))


def _require_carried(name: str, found: SingleLines) -> None:
    actions = found.actions
    if actions.repeated:
        raise _refused(name, f"the file holds two actions for {min(actions.repeated)}")
    lost = sorted(actions.unknown)
    if actions.draft_high_water_mark is not None:
        lost.append("rowIdHighWaterMark")
    if lost:
        raise _refused(
            name, f"a log compaction would lose {', '.join(lost)}, which no reader knows"
        )


def _require_single(
    lines: FileActionLines, hashes: Hashes, stands: np.ndarray, files: Sequence[str]
) -> None:
    """Refuses a file in which a logical file occurs twice; the newest of several files wins."""
    superseded = np.sort(hashes[~stands])
    at = np.searchsorted(superseded[:-1], hashes)
    suspects = np.flatnonzero(superseded[at] == hashes)
    sources, keys = lines.source[suspects], hashes[suspects]
    order = np.lexsort((keys, sources))
    sources, keys = sources[order], keys[order]
    repeats = np.flatnonzero((sources[1:] == sources[:-1]) & (keys[1:] == keys[:-1]))
    if len(repeats):
        row = int(suspects[order[repeats[0]]])
        path = lines.keys.array()[row].as_py().rpartition("\0")[2]
        raise _refused(files[int(lines.source[row])], f"the file holds two actions for {path}")


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _refused(name: str, problem: str) -> RefusedError:
    return RefusedError(
        problem, file=name, remedy="let these commits be: readers read them as they are"
    )
