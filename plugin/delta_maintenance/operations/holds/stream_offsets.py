"""The offsets of one batch of Structured Streaming, from a file of its checkpoint folder.

The first line is the version of the format, the second the metadata of the batch. Each further line
is the offset of one source: its JSON, or `-` before the source has read anything. In version 2 of
the format, the ID of the source and a colon precede it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from delta_maintenance.protocol.actions.model import object_with_unique_keys

_NOTHING = "-"
_FORMATS = ("v1", "v2")
_KEYS = (("reservoirId", "reservoirVersion"), ("tableId", "tableVersion"))
"""The keys for the table and its version: of Delta, and of Delta Sharing."""
_SOURCE_VERSIONS = (1, 3)
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOffset:
    """The position of a source that reads a Delta table."""

    table_id: str
    version: int
    """The version that is read next, or that is read in part."""
    in_snapshot: bool
    """Whether the source still reads this version as a whole, with which every stream begins that
    is not told a version. Later versions are read by their changes."""


def parse_offsets(data: bytes) -> dict[str, TableOffset | None]:
    """Returns the offset of each source that reads a Delta table, or None before it has read
    anything. The keys are the IDs or the positions of the sources; other sources are left out.

    Raises `ValueError`, with one clause that states the problem.
    """
    try:
        version, _, *lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except ValueError:
        raise ValueError("it is incomplete") from None
    if version not in _FORMATS:
        raise ValueError(f"its format {version[:20]!r} is not known")
    if not lines:
        raise ValueError("it names no source")
    return dict(_sources(lines, named=version == "v2"))


def _sources(lines: list[str], *, named: bool) -> Iterator[tuple[str, TableOffset | None]]:
    for number, line in enumerate(lines):
        name, text = str(number), line
        if named:
            name, colon, text = line.partition(":")
            if not colon:
                raise ValueError(f"line {number + 3} names no source")
        if text == _NOTHING:
            yield name, None
            continue
        try:
            value: Any = json.loads(text, object_pairs_hook=object_with_unique_keys)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number + 3} is not JSON with unique keys") from None
        keys = next((keys for keys in _KEYS if isinstance(value, dict) and keys[0] in value), None)
        if keys is not None:
            try:
                yield name, _offset(value, *keys)
            except ValueError as error:
                raise ValueError(f"line {number + 3} {error}") from None


def _offset(value: Mapping[str, Any], table: str, version: str) -> TableOffset:
    if value.get("sourceVersion") not in _SOURCE_VERSIONS:
        raise ValueError("has a format of offsets that is not known")
    found, at = value[table], value.get(version)
    in_snapshot = value.get("isStartingVersion")
    if not isinstance(found, str) or not isinstance(in_snapshot, bool):
        raise ValueError("is not the offset of a Delta table")
    if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at <= _MOST:
        raise ValueError("has no version of the table")
    return TableOffset(table_id=found, version=at, in_snapshot=in_snapshot)
