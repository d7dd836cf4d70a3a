"""Splits the text of a commit or of a log compaction into lines, within limits.

Implements "Delta Log Entries": newline-delimited JSON, one action per line. Blank lines, whitespace
around the JSON and several actions on one line occur in real logs and are accepted; all other
deviations are corruption and reported with file and line. Deep nesting would overflow the stack of
a parser. If every line has different keys, the size of the resulting columns is quadratic in the
size of the text.

Nearly all lines of a large log are file actions. They stay text here, to be parsed as columns
(`parse`); only the other lines become objects. A long commit is read piece by piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CorruptTableError, OversizedFileError
from delta_maintenance.limits import MOST_NESTING
from delta_maintenance.protocol.actions.model import (
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
    Txn,
    object_with_unique_keys,
)

MOST_KEYS = 256
"""The maximum number of distinct keys in a set of lines that is parsed into columns."""
MOST_CELLS = 50_000_000
_MOST_LINE = 64 << 20
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_STEPS = np.zeros(256, np.int64)
_STEPS[[*b"{["]] = 1
_STEPS[[*b"}]"]] = -1


def require_bounded(line: bytes) -> None:
    """`CorruptTableError` for a line that is too long or too deeply nested to become objects."""
    if len(line) > _MOST_LINE:
        raise CorruptTableError(f"a line of {len(line)} bytes, more than any action needs")
    if is_too_deep(line):
        raise CorruptTableError(f"a line of JSON nested more than {MOST_NESTING} levels deep")


def is_too_deep(line: bytes) -> bool:
    """Whether objects and lists are nested more than `MOST_NESTING` levels deep."""
    if line.count(b"{") + line.count(b"[") <= MOST_NESTING:
        return False
    # Brackets in strings do not count; an unterminated string is invalid JSON anyway.
    outside = np.frombuffer(_TEXT.sub(b"", line), np.uint8)
    depths = np.cumsum(_STEPS[outside])
    return bool(len(depths) and depths.max() > MOST_NESTING)


def has_too_many_keys(lines: Sequence[bytes], *, most_cells: int = 0) -> bool:
    """Whether a column for each key of these lines would take too much time and memory.

    A table of at most `most_cells` values is accepted whatever its keys. Also true for invalid
    lines; the caller then parses the lines one by one and names the invalid one.
    """
    colons = sum(line.count(b":") for line in lines)
    if colons <= MOST_KEYS or colons * len(lines) <= most_cells:
        return False
    keys: set[str] = set()

    def collect(pairs: list[tuple[str, Any]]) -> None:
        keys.update(key for key, _ in pairs)

    decoder = json.JSONDecoder(object_pairs_hook=collect)
    for line in lines:
        try:
            decoder.decode(line.decode())
        except (ValueError, RecursionError):
            return True
        if len(keys) > MOST_KEYS:
            return True
    return False


FILE_ACTIONS = frozenset({"add", "remove", "cdc"})
SINGLE_ACTIONS = (
    "protocol",
    "metaData",
    "txn",
    "domainMetadata",
    "commitInfo",
    "rowIdHighWaterMark",
    "checkpointMetadata",
    "sidecar",
)
KNOWN_ACTIONS = FILE_ACTIONS.union(SINGLE_ACTIONS)

_LINE_ACTIONS = ("add", "remove", "cdc")
_FILE_LINES = tuple(b'{"%b":{' % action.encode() for action in _LINE_ACTIONS)
_ACTION_OF_WORD = {
    int.from_bytes(mark[:8], "little"): action
    for mark, action in zip(_FILE_LINES, _LINE_ACTIONS, strict=True)
}
"""The file actions by the first eight bytes of their lines, as an integer."""
_NEWLINE = ord("\n")
_MOST_RUNS = 8
"""A file with more runs is treated as a mixture of actions."""
_NAMES = "|".join(sorted(KNOWN_ACTIONS))
_SECOND_ACTION = re.compile(rf',\s*"(?:(?:{_NAMES})"\s*:(?!\s*null)|[^"\\]*\\u)'.encode())
"""Matches in each line with another known action that is not null. An escape can hide a name. Keys
that are no actions may come between two actions."""
_SECOND_NAME = rf',\s*"(?:(?:{_NAMES})"|[^"\\]*\\u)'
"""Matches also if the action is null. For Arrow, whose expressions cannot look ahead, and which
takes a fifth of the instructions."""
_LONG = 1 << 16
"""Of longer texts, it pays to let Arrow search them first."""


_STATE_KEYS = {"protocol": None, "metaData": None, "txn": "appId", "domainMetadata": "domain"}
"""The actions that are part of the state, and the fields that tell those of one name apart."""


@dataclass(slots=True)
class SingleActions:
    """The non-file actions of one file of the log; later lines replace earlier ones."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    commit_info: CommitInfo | None = None
    draft_high_water_mark: dict[str, Any] | None = None
    checkpoint_metadata: list[CheckpointMetadata] = field(default_factory=list)
    sidecars: list[Sidecar] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Names of actions that no revision of the protocol defines."""
    repeated: set[str] = field(default_factory=set)
    """Actions that occur twice although the protocol permits one."""
    texts: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """The line of each action that is part of the state. Its key is the name of the action and,
    where a state can have several of them, the application ID or the domain."""

    def take(self, name: str, value: Mapping[str, Any]) -> None:
        """Adds an action. `CorruptTableError` if a required field is missing."""
        match name:
            case "protocol":
                self._once(name, self.protocol)
                self.protocol = Protocol.from_json(value)
            case "metaData":
                self._once(name, self.metadata)
                self.metadata = Metadata.from_json(value)
            case "txn":
                txn = Txn.from_json(value)
                self._once(f"txn {txn.app_id}", self.txns.get(txn.app_id))
                self.txns[txn.app_id] = txn
            case "domainMetadata":
                domain = DomainMetadata.from_json(value)
                self._once(f"domainMetadata {domain.domain}", self.domains.get(domain.domain))
                self.domains[domain.domain] = domain
            case "commitInfo":
                self.commit_info = CommitInfo(values=value)
            case "rowIdHighWaterMark":
                # Databricks 12.2 wrote the action without a value.
                present = {key: mark for key, mark in value.items() if mark is not None}
                self.draft_high_water_mark = present or self.draft_high_water_mark
            case "checkpointMetadata":
                self.checkpoint_metadata.append(CheckpointMetadata.from_json(value))
            case "sidecar":
                self.sidecars.append(Sidecar.from_json(value))

    def _once(self, name: str, present: object) -> None:
        if present is not None:
            self.repeated.add(name)


@dataclass(frozen=True, slots=True)
class FileBlock:
    """The position of a contiguous block of file action lines in a file of the log."""

    start: int
    end: int
    """The offset after the last newline."""
    runs: tuple[tuple[int, int, str | None], ...]
    """For each run of lines: the offset after its last newline, the number of lines, and their
    action.
    """

    @property
    def count(self) -> int:
        """The number of lines."""
        return sum(count for _, count, _ in self.runs)

    def shift(self, by: int) -> FileBlock:
        """Returns the block shifted by that many bytes."""
        runs = tuple((end + by, count, action) for end, count, action in self.runs)
        return FileBlock(self.start + by, self.end + by, runs)

    def of(self, data: bytes) -> Iterator[LineRun]:
        """Yields the runs as text."""
        start, text = self.start, memoryview(data)
        for end, count, action in self.runs:
            yield LineRun(text[start:end], count, action)
            start = end


@dataclass(frozen=True, slots=True)
class LineRun:
    """Adjacent lines, each with one add, remove or cdc action and a newline."""

    text: memoryview | bytes
    count: int
    action: str | None = None
    """The action at the start of all lines; None if they differ, or may differ."""


@dataclass(frozen=True, slots=True)
class CommitText:
    """One file of the log, split into lines to parse as columns and lines to parse one by one."""

    name: str
    """Relative to the table root, for messages."""
    file_lines: tuple[LineRun, ...]
    file_line_numbers: Sequence[int]
    """The line number of each of these lines, counted from 1."""
    other_lines: tuple[tuple[int, bytes], ...]
    """The other lines that are not blank, with their line numbers, counted from 1."""
    block: FileBlock | None
    """Set if the file action lines are contiguous: makes the next `split` of the file faster."""


def split(
    name: str,
    data: bytes,
    *,
    thorough: bool = True,
    block: FileBlock | None = None,
    first_line: int = 1,
) -> CommitText:
    """Separates file action lines from other lines without parsing them.

    `first_line` is the number of the first line. A line that starts with a file action may contain
    another action after it, although no known writer does that; it counts as another line. Without
    `thorough`, such lines are not found.
    `CorruptTableError` for an empty file, which a writer can leave behind on stores that show
    unfinished files.
    """
    if not data or data.isspace():
        raise CorruptTableError(
            "the file is empty",
            file=name,
            remedy="restore it from a backup, or remove it if no writer ever reported this commit",
        )
    if not data.endswith(b"\n"):
        data += b"\n"
    if block is None:
        if not data.isascii():
            _require_utf8(name, data, first_line)
        block = _file_block(data)
    if block is None or (thorough and _has_second_action(data, block.start, block.end)):
        return _split_lines(name, data, first_line)
    lines = tuple(block.of(data))
    first_number = first_line + data.count(b"\n", 0, block.start)
    numbers = range(first_number, first_number + block.count)
    head = _number_lines(data[: block.start], first_line)
    tail = _number_lines(data[block.end :], numbers.stop)
    return CommitText(name, lines, numbers, (*head, *tail), block)


def require_no_single_actions(text: CommitText) -> None:
    """Raises `CorruptTableError` for a line with a file action and then one of another kind."""
    for number, line in text.other_lines:
        if line.startswith(_FILE_LINES) and not parse_line(line).keys().isdisjoint(SINGLE_ACTIONS):
            raise CorruptTableError(
                f"line {number}: another action follows a file action", file=text.name
            )


def parse_other_lines(
    text: CommitText, *, commit_info: bool = False
) -> tuple[SingleActions, list[bytes]]:
    """Parses the non-file actions, and returns every file action on these lines as a line of its
    own.

    `commitInfo` is free-form and rarely needed; without `commit_info` it is only validated as JSON.
    """
    actions, files = SingleActions(), []
    for number, line in text.other_lines:
        try:
            present = parse_present(line)
            for name, value in present.items():
                if name == "commitInfo" and not commit_info:
                    continue
                if name not in KNOWN_ACTIONS:
                    actions.unknown.add(name)
                    continue
                if not isinstance(value, dict):
                    raise CorruptTableError(f"{name} is not a JSON object")
                own = line.strip() + b"\n" if len(present) == 1 else render_action(name, value)
                if name in FILE_ACTIONS:
                    files.append(own)
                    continue
                actions.take(name, value)
                if name in _STATE_KEYS:
                    field_name = _STATE_KEYS[name]
                    actions.texts[name, value[field_name] if field_name else ""] = own
        except CorruptTableError as error:
            error.problem = f"line {number}: {error.problem}"
            raise error.locate(file=text.name) from None
    return actions, files


def parse_present(line: bytes) -> dict[str, Any]:
    """Like `parse_line`, without the actions that are null."""
    return {name: value for name, value in parse_line(line).items() if value is not None}


def render_action(name: str, value: object) -> bytes:
    """Returns a line with one action."""
    text = json.dumps({name: value}, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def parse_line(line: bytes) -> dict[str, Any]:
    """Parses the actions of a line. `CorruptTableError` for text that is not a JSON object or
    repeats a key.
    """
    require_bounded(line)
    try:
        value = _DECODER.decode(line.decode(json.detect_encoding(line), "surrogatepass"))
        if b"\\ud" in line.lower():
            # Python accepts an unpaired surrogate, which is not a character.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise CorruptTableError(
            f"not valid JSON ({problem})",
            remedy="restore the file from a backup; never edit a commit",
        ) from None
    if not isinstance(value, dict):
        raise CorruptTableError("not a JSON object")
    return value


def _file_block(data: bytes) -> FileBlock | None:
    """Returns the block of file actions, or None if other lines are between them."""
    # Writers put the other actions first or last, so most of the text is between them.
    start, end = 0, len(data)
    while start < end and not data.startswith(_FILE_LINES, start):
        start = data.index(b"\n", start) + 1
    while end > start:
        last_line = data.rfind(b"\n", start, end - 1) + 1 or start
        if data.startswith(_FILE_LINES, last_line):
            break
        end = last_line
    if start == end:
        return FileBlock(start, end, ())
    # Every line of the block must start like a file action.
    text = np.frombuffer(data, np.uint8, end - start, start)
    lines = (text == _NEWLINE).nonzero()[0] + (start + 1)
    words: npt.NDArray[np.uint64] = np.ndarray(
        (len(data) - 7,), np.dtype("<u8"), data, strides=(1,)
    )
    starts = np.empty(len(lines), np.uint64)
    starts[0], starts[1:] = words[start], words[lines[:-1]]
    last_lines = [*(starts[1:] != starts[:-1]).nonzero()[0].tolist(), len(lines) - 1]
    heads = starts[last_lines].tolist()
    if not _ACTION_OF_WORD.keys() >= set(heads):
        return None
    if len(heads) > _MOST_RUNS:
        return FileBlock(start, end, ((end, len(lines), None),))
    ends = lines[last_lines].tolist()
    counts = [number - before for before, number in pairwise([-1, *last_lines])]
    actions = [_ACTION_OF_WORD[head] for head in heads]
    return FileBlock(start, end, tuple(zip(ends, counts, actions, strict=True)))


def _split_lines(name: str, data: bytes, first_line: int) -> CommitText:
    files, numbers, other_lines = [], [], []
    for number, line in _number_lines(data, first_line):
        if line.startswith(_FILE_LINES) and not _has_second_action(line, 0, len(line)):
            files.append(line)
            numbers.append(number)
        else:
            other_lines.append((number, line))
    runs = (LineRun(b"\n".join([*files, b""]), len(files)),) if files else ()
    return CommitText(name, runs, numbers, tuple(other_lines), None)


def _has_second_action(data: bytes, start: int, end: int) -> bool:
    if end - start > _LONG:
        ends = pa.py_buffer(np.array([start, end], np.int64))
        buffers = [None, ends, pa.py_buffer(data)]
        text = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, buffers)
        if not pc.match_substring_regex(text, _SECOND_NAME)[0].as_py():
            return False
    return _SECOND_ACTION.search(data, start, end) is not None


def _number_lines(data: bytes, first_number: int) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.split(b"\n"), first_number):
        if line.strip():
            yield number, line


def _require_utf8(name: str, data: bytes, first_line: int) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise CorruptTableError(
            f"line {line} is not UTF-8", file=name, remedy="restore the file from a backup"
        ) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


# Creating a decoder takes longer than parsing a line.
_DECODER = json.JSONDecoder(
    object_pairs_hook=object_with_unique_keys, parse_constant=_refuse_constant
)


def split_pieces(name: str, pieces: Iterable[bytes], *, longest: int) -> CommitText:
    """Like `split.split` of the concatenated pieces, but without the file action lines.

    Holds one piece, or the longest line if that is longer; `OversizedFileError` for a line of more
    than `longest` bytes.
    """
    other_lines: list[tuple[int, bytes]] = []
    joined_block: FileBlock | None = FileBlock(0, 0, ())
    start, first_line, empty = 0, 1, True
    for text in _whole_lines(name, pieces, longest):
        if not text.isspace():
            piece = split(name, text, first_line=first_line)
            other_lines += piece.other_lines
            joined_block = _join_blocks(joined_block, piece.block, start)
            empty = False
        start += len(text)
        first_line += text.count(b"\n")
    if empty:
        split(name, b"")
    return CommitText(name, (), (), tuple(other_lines), joined_block)


def _join_blocks(
    joined_block: FileBlock | None, block: FileBlock | None, start: int
) -> FileBlock | None:
    """Joins the block so far with the next one, `start` bytes further on, if they are adjacent."""
    if joined_block is None or block is None:
        return None
    if not block.runs:
        return joined_block
    block = block.shift(start)
    if not joined_block.runs:
        return block
    if joined_block.end != block.start:
        return None
    return FileBlock(joined_block.start, block.end, joined_block.runs + block.runs)


def _whole_lines(name: str, pieces: Iterable[bytes], longest: int) -> Iterator[bytes]:
    partial_line: list[bytes] = []
    size = 0
    for piece in pieces:
        head, newline, tail = piece.rpartition(b"\n")
        end = piece.find(b"\n") if newline else len(piece)
        if max(size + end, len(tail)) > longest:
            raise OversizedFileError(f"a line has more than {longest} bytes", file=name)
        if newline:
            lines = b"".join([*partial_line, head, newline])
            # Released before the caller parses the lines, which may be one long line.
            partial_line, size = [], 0
            yield lines
            del lines
        partial_line.append(tail)
        size += len(tail)
    if size:
        yield b"".join(partial_line)
