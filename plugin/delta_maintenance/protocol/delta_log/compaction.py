"""Reconciling a range of commits without the state before it.

Implements the content of "Log Compaction Files". The newest action of each key is kept whatever its
age: a remove must still hide a file from before the range, a removed domain must hide an older one,
and readers of the state decide whether a transaction has expired. Omitted are only the actions that
the protocol excludes from these files: `commitInfo`, change data files and actions that only
checkpoints contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from delta_maintenance.errors import CorruptTableError, RefusedError
from delta_maintenance.protocol.columns import Hashes
from delta_maintenance.protocol.delta_log.replay import FileReplay
from delta_maintenance.protocol.ndjson.line_buffers import TextLines
from delta_maintenance.protocol.ndjson.raw_lines import FileActionLines, read_lines
from delta_maintenance.protocol.ndjson.split import SingleActions, parse_line

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class RangeContent:
    """The effect of a range of commits. Ranges with equal content change any state equally."""

    adds: int = 0
    removes: int = 0
    keys: int = 0
    """The sum of the hashes of all logical files, modulo 2^64; removes are weighted differently."""
    singles: dict[tuple[str, str], object] = field(default_factory=dict)
    """The newest value of each non-file action, without nulls, by its name and its key among
    actions of that name."""

    def count(self, hashes: Hashes, is_remove: Bools) -> None:
        """Counts file actions, given the hashes of their keys."""
        removes = int(is_remove.sum())
        self.removes += removes
        self.adds += len(is_remove) - removes
        weights = np.where(is_remove, np.uint64(3), np.uint64(1))
        total = np.add.reduce(hashes * weights, dtype=np.uint64)
        self.keys = (self.keys + int(total)) % 2**64

    def add(self, content: RangeContent) -> None:
        """Adds the content of another part of the same range."""
        self.adds += content.adds
        self.removes += content.removes
        self.keys = (self.keys + content.keys) % 2**64
        self.singles.update(content.singles)

    @property
    def actions(self) -> int:
        """The number of lines."""
        return self.adds + self.removes + len(self.singles)


class RangeReplay:
    """Reconciles files of the log, read from the newest to the oldest, into lines of text."""

    def __init__(self) -> None:
        self.content = RangeContent()
        self.superseded = 0
        """The number of superseded file actions."""
        self.single_texts: dict[tuple[str, str], bytes] = {}
        """The newest line of each non-file action."""
        self._replay = FileReplay()

    def surviving(self, batch: TextLines) -> FileActionLines:
        """The file actions of a batch that no newer action supersedes.

        The batch contains files that are older than those of all earlier batches, newest first.
        Raises `CorruptTableError` if a line cannot be read, or if a file has two actions with one
        key, so that their order is unknown; and `RefusedError` for an action that would be lost.
        """
        files = batch.files.names
        lines, singles = read_lines(batch)
        for file, actions in zip(files, singles, strict=True):
            _require_carried(file, actions)
            for key, text in actions.texts.items():
                if key not in self.single_texts:
                    self.single_texts[key] = text
                    self.content.singles[key] = single_value(text)
        order = np.argsort(lines.source, kind="stable")
        survives = np.zeros(len(order), bool)
        hashes = lines.keys.hashes()
        survives[self._replay.surviving(lines.keys.array(), order=order, hashes=hashes)] = True
        if not survives.all():
            _require_unique(lines, hashes, survives, files)
            self.superseded += int((~survives).sum())
        survivors = lines.filter(survives)
        self.content.count(hashes[survives], survivors.is_remove)
        return survivors


def content_of(text: TextLines) -> RangeContent:
    """The content of reconciled lines."""
    content = RangeContent()
    lines, singles = read_lines(text)
    content.count(lines.keys.hashes(), lines.is_remove)
    content.singles = {
        key: single_value(line) for actions in singles for key, line in actions.texts.items()
    }
    return content


def single_value(line: bytes) -> object:
    """The value of a non-file action's line, as in `RangeContent.singles`."""
    return _without_nulls(parse_line(line))


def _require_carried(name: str, actions: SingleActions) -> None:
    if actions.repeated:
        raise _repetition_error(name, min(actions.repeated))
    lost = sorted(actions.unknown)
    if actions.draft_high_water_mark is not None:
        lost.append("rowIdHighWaterMark")
    if lost:
        raise _refusal(name, f"a log compaction would lose the unknown actions {', '.join(lost)}")


def _require_unique(
    lines: FileActionLines, hashes: Hashes, survives: np.ndarray, files: Sequence[str]
) -> None:
    """Raises `CorruptTableError` for a file with two actions for one logical file; between files
    the newest wins.
    """
    superseded = np.sort(hashes[~survives])
    at = np.searchsorted(superseded[:-1], hashes)
    suspects = np.flatnonzero(superseded[at] == hashes)
    sources, keys = lines.source[suspects], hashes[suspects]
    order = np.lexsort((keys, sources))
    sources, keys = sources[order], keys[order]
    repeats = np.flatnonzero((sources[1:] == sources[:-1]) & (keys[1:] == keys[:-1]))
    if len(repeats):
        row = int(suspects[order[repeats[0]]])
        path = lines.keys.array()[row].as_py().rpartition("\0")[2]
        raise _repetition_error(files[int(lines.source[row])], path)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _repetition_error(name: str, subject: str) -> CorruptTableError:
    return CorruptTableError(
        f"the file contains two actions for {subject}",
        file=name,
        remedy="see with fsck what else is wrong; readers interpret such a commit differently",
    )


def _refusal(name: str, problem: str) -> RefusedError:
    return RefusedError(
        problem, file=name, remedy="do not compact this range; readers read its commits instead"
    )
