"""The tags of V2 checkpoints and of their sidecars, and the choice of sidecars to merge.

Implements "Checkpoint Metadata Tags". All tags are optional and prove nothing: if a tag contradicts
the files, the files are right. The protocol leaves `sidecar.tags` to the writer ("Sidecar File
Information"). This library writes one tag, and the same text into the footer of the file. A later
checkpoint uses it to take over a sidecar unread, and `fsck` compares it with the content.

The sidecars form a log-structured merge tree. Sidecars of at least half the target size are full
and never merged; smaller ones belong to tiers by size. A tier keeps fewer than `FANOUT` sidecars:
when it would get more, all of them are merged into one of a higher tier. Each action is therefore
rewritten at most once per tier, and a checkpoint of `n` actions of one kind has at most

    2 * n / size + (FANOUT - 1) * tiers(size) + 2

sidecars of that kind; the last two allow for remainders of cutting and merging.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self
from urllib.parse import quote, unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.protocol.actions.model import Sidecar
from delta_maintenance.protocol.actions.paths import written_locations
from delta_maintenance.protocol.columns import Hashes, MembershipFilter, hash_texts
from delta_maintenance.protocol.delta_log.last_checkpoint import MAX_SCHEMA_CHARACTERS
from delta_maintenance.protocol.delta_log.version_checksum import Tally

SCHEMA_TAG = "sidecarFileSchema"
ACTIONS_TAG = "sidecarNumActions"
SIZE_TAG = "sidecarSizeInBytes"
FILES_TAG = "numOfAddFiles"

SUMS_TAG = "delta-maintenance.sums"
"""A tag of this library: the sums over all sidecars."""

SparkSchema = Mapping[str, Any]
"""A `StructType` in Spark's JSON form."""


def checkpoint_tags(
    tally: Tally, *, sidecar_actions: int, sidecar_bytes: int, schema: SparkSchema | None
) -> dict[str, str]:
    """Returns the tags of a checkpoint with the file actions of this tally.

    `schema` is the schema of the sidecars; None if there are none, or if Spark has no type for a
    field. A schema with a long JSON text is omitted, as in Delta Spark.
    """
    tags = {
        ACTIONS_TAG: str(sidecar_actions),
        SIZE_TAG: str(sidecar_bytes),
        FILES_TAG: str(tally.adds),
    }
    text = None if schema is None else json.dumps(schema, separators=(",", ":"))
    if text is not None and len(text) <= MAX_SCHEMA_CHARACTERS:
        tags[SCHEMA_TAG] = text
    sums = {
        "adds": tally.adds,
        "tombstones": tally.tombstones,
        "bytes": tally.size,
        "keys": f"{tally.keys:016x}",
    }
    return {**tags, SUMS_TAG: json.dumps(sums, separators=(",", ":"))}


def stated_sums(tags: Mapping[str, str] | None) -> Tally | None:
    """Parses the tally in this library's tag; None if it is missing or invalid."""
    try:
        stated = json.loads((tags or {})[SUMS_TAG])
        adds, tombstones, size = (stated[name] for name in ("adds", "tombstones", "bytes"))
        if not all(type(n) is int and 0 <= n < 2**63 for n in (adds, tombstones, size)):
            return None
        return Tally(adds, tombstones, size, int(stated["keys"], 16) % 2**64)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def stated_schema(tags: Mapping[str, str] | None) -> SparkSchema | None:
    """Parses the schema of the sidecars; None if the tag is missing or invalid."""
    try:
        schema = json.loads((tags or {})[SCHEMA_TAG])
    except (ValueError, KeyError, RecursionError):
        return None
    return schema if isinstance(schema, dict) and schema.get("type") == "struct" else None


def stated_actions(tags: Mapping[str, str] | None) -> int | None:
    """The number of file actions in the sidecars; None if the tag is missing or invalid."""
    return _stated_number(tags, ACTIONS_TAG)


def exact_counts(tags: Mapping[str, str] | None) -> tuple[int, int] | None:
    """The numbers of adds and removes in the sidecars; None unless the tags state both."""
    actions, adds = _stated_number(tags, ACTIONS_TAG), _stated_number(tags, FILES_TAG)
    if actions is None or adds is None or adds > actions:
        return None
    return adds, actions - adds


def _stated_number(tags: Mapping[str, str] | None, name: str) -> int | None:
    text = (tags or {}).get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def spark_schema(schema: pa.Schema) -> SparkSchema | None:
    """Converts a schema to Spark's form; None if Spark has no type for a field."""
    try:
        return _struct(schema)
    except KeyError:
        return None


def merged_schemas(
    schema: SparkSchema, added: SparkSchema, *, without: Collection[str] = ()
) -> SparkSchema:
    """Merges the fields of two schemas, those of the first one before fields that only the second
    one has.

    If a field has different types, the type of the first schema is used. Fields of actions in
    `without` are taken from the first schema only.
    """
    theirs = {member["name"]: member for member in added.get("fields", ())}
    fields = []
    for member in schema.get("fields", ()):
        match = theirs.pop(member["name"], None)
        kinds = [item["type"] for item in (member, match) if item is not None]
        if len(kinds) == 2 and all(isinstance(kind, Mapping) for kind in kinds):
            mine, theirs_kind = kinds
            if mine.get("type") == theirs_kind.get("type") == "struct":
                member = {**member, "type": merged_schemas(mine, theirs_kind, without=without)}
        fields.append(member)
    new_members = (member for name, member in theirs.items() if name not in without)
    return {"type": "struct", "fields": [*fields, *new_members]}


_PRIMITIVES: Mapping[pa.DataType, str] = {
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}


def _struct(fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}
            for field in fields
        ],
    }


def _type(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return _struct(kind)
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type),
            "valueType": _type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return _PRIMITIVES[kind]


SUMMARY_TAG = "delta-maintenance.summary"
"""The tag of a sidecar, and the key in the metadata of its footer."""

LOCATION_BYTES = 48
"""The number of bytes that are kept of the first and the last location: enough to distinguish
partitions.
"""

_NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A range of bytes in a file."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSummary:
    """The summary of one sidecar."""

    tally: Tally
    first_location: bytes
    """The smallest and the largest location of its files (`paths.written_locations`), truncated to
    `LOCATION_BYTES` bytes; both empty without files.
    """
    last_location: bytes
    deleted_first: int | None
    """The smallest and the largest deletion timestamp of its tombstones, in milliseconds since
    1970-01-01 UTC; None without tombstones.

    A tombstone without a timestamp counts as older than all others.
    """
    deleted_last: int | None
    filter: ByteRange | None
    """The byte range of the `MembershipFilter` of the locations."""

    def to_tags(self, name: str) -> dict[str, str]:
        """Returns the value of `sidecar.tags`; `name` is the bare name of the file."""
        tally = self.tally
        values: dict[str, Any] = {
            "adds": tally.adds,
            "tombstones": tally.tombstones,
            "bytes": tally.size,
            "keys": f"{tally.keys:016x}",
            "locations": [quote(self.first_location), quote(self.last_location)],
        }
        if self.deleted_first is not None and self.deleted_last is not None:
            values["deleted"] = [self.deleted_first, self.deleted_last]
        if self.filter is not None:
            values["filter"] = [self.filter.offset, self.filter.length]
        values["check"] = _check(name, values)
        return {SUMMARY_TAG: json.dumps(values, separators=(",", ":"))}

    @classmethod
    def from_tags(cls, tags: Mapping[str, str] | None, name: str) -> Self | None:
        """Parses the tags of the file with this name.

        None if the tags were written by another writer, are invalid, or belong to another file.
        """
        text = (tags or {}).get(SUMMARY_TAG)
        if text is None:
            return None
        try:
            values = json.loads(text)
            if values.pop("check") != _check(name, values):
                return None
            counts = [values[name] for name in ("adds", "tombstones", "bytes")]
            lowest, highest = values["locations"]
            deleted, key_filter = values.get("deleted"), values.get("filter")
            numbers = [*counts, *(deleted or ()), *(key_filter or ())]
            if not all(type(number) is int and abs(number) < 2**63 for number in numbers):
                return None
            if min(counts) < 0 or (key_filter is not None and min(key_filter) < 0):
                return None
            adds, tombstones, size = counts
            return cls(
                tally=Tally(adds, tombstones, size, int(values["keys"], 16) % 2**64),
                first_location=unquote_to_bytes(lowest),
                last_location=unquote_to_bytes(highest),
                deleted_first=None if deleted is None else deleted[0],
                deleted_last=None if deleted is None else deleted[1],
                filter=None
                if key_filter is None
                else ByteRange(offset=key_filter[0], length=key_filter[1]),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return None


def bare_name(sidecar: Sidecar) -> str:
    """The bare name of the file, as in the summary."""
    return sidecar.path.rpartition("/")[2]


def stated_summary(sidecar: Sidecar) -> SidecarSummary | None:
    """Returns the summary in the tags of a sidecar if it is valid."""
    return SidecarSummary.from_tags(sidecar.tags, bare_name(sidecar))


def _check(name: str, values: Mapping[str, Any]) -> int:
    """Returns a checksum of the tag. Readers do not open the file, so damage must be detectable in
    the tag.
    """
    return zlib.crc32(json.dumps([name, values], sort_keys=True).encode())


@dataclass(slots=True)
class SummaryBuilder:
    """Builds the summary of a sidecar from batches. Stores eight bytes for each file action."""

    tally: Tally = field(default_factory=Tally)
    _first: bytes | None = None
    _last: bytes | None = None
    _deleted: tuple[int, int] | None = None
    _hashes: list[Hashes] = field(default_factory=list)

    def include(
        self, adds: pa.Table, tombstones: pa.Table, *, add_hashes: Hashes | None = None
    ) -> None:
        """Adds a batch with the columns of a snapshot's scan.

        `add_hashes` are the hashes of the keys of its adds, if already computed.
        """
        self.tally.include(adds, tombstones, add_hashes=add_hashes)
        self._include_locations(adds, add_hashes)
        self._include_locations(tombstones, None)
        self._include_deletions(tombstones)

    def filter(self) -> MembershipFilter:
        """The filter of all locations."""
        return MembershipFilter.of(np.concatenate([np.empty(0, np.uint64), *self._hashes]))

    def summary(self, byte_range: ByteRange | None) -> SidecarSummary:
        """Returns the summary, given the byte range of the filter in the file."""
        return SidecarSummary(
            tally=self.tally,
            first_location=self._first or b"",
            last_location=self._last or b"",
            deleted_first=None if self._deleted is None else self._deleted[0],
            deleted_last=None if self._deleted is None else self._deleted[1],
            filter=byte_range,
        )

    def _include_locations(self, batch: pa.Table, key_hashes: Hashes | None) -> None:
        if not batch.num_rows:
            return
        paths = pa.concat_arrays(batch["path"].chunks)
        locations = written_locations(paths)
        if (
            key_hashes is not None
            and _are_keys(batch)
            and locations.equals(paths.cast(pa.binary()))
        ):
            self._hashes.append(key_hashes)
        else:
            self._hashes.append(hash_texts(locations))
        ends = pc.min_max(pc.binary_slice(locations, 0, LOCATION_BYTES)).as_py()
        self._first = ends["min"] if self._first is None else min(self._first, ends["min"])
        self._last = ends["max"] if self._last is None else max(self._last, ends["max"])

    def _include_deletions(self, tombstones: pa.Table) -> None:
        if not tombstones.num_rows:
            return
        earliest = latest = _NO_TIME
        if "deletionTimestamp" in tombstones.column_names:
            times = pc.min_max(pc.fill_null(tombstones["deletionTimestamp"], _NO_TIME)).as_py()
            earliest, latest = times["min"], times["max"]
        before = self._deleted or (earliest, latest)
        self._deleted = min(earliest, before[0]), max(latest, before[1])


def _are_keys(batch: pa.Table) -> bool:
    """Whether the keys of a batch are identical to its paths."""
    if "deletionVector" not in batch.column_names:
        return True
    vectors = batch["deletionVector"]
    return bool(vectors.null_count == len(vectors))


FANOUT = 4
SMALLEST_TIER = 1024
"""Sidecars with fewer actions are merged whenever a new one is written, because rewriting them
costs about as much as referring to them.
"""

_FEWEST_PER_SIDECAR = 16_384
_MOST_SIDECARS = 512
"""The number of sidecars for small tables.

Rewriting an action costs about 4 microseconds, and referring to a sidecar about 50, so a removed
file should not rewrite 50,000 other actions.
"""


def tiers(size: int) -> int:
    """The number of tiers below half the target size, including the smallest one."""
    half = size / 2
    return next(n for n in count(1) if SMALLEST_TIER * FANOUT ** (n - 1) >= half)


def most_sidecars(actions: int, size: int) -> int:
    """The maximum number of sidecars of one kind in a checkpoint."""
    return 2 * actions // size + (FANOUT - 1) * tiers(size) + 2


def sidecar_size(actions: int, *, at_most: int) -> int:
    """The target number of actions per sidecar, for a table with this number of actions.

    Small tables get smaller sidecars. A sidecar with a removed file is rewritten, and that should
    be a small share of the checkpoint.
    """
    return min(at_most, max(_FEWEST_PER_SIDECAR, actions // _MOST_SIDECARS))


def chosen_for_merge(sizes: Sequence[int], *, new_actions: int, size: int) -> list[int]:
    """Returns the positions of the untouched sidecars to be merged with new actions of their kind.

    `sizes` are their numbers of actions. Empty if there are no new actions and no merge is needed.
    """
    tier_of = [_tier(sidecar_size, size) for sidecar_size in sizes]
    chosen: list[int] = []
    total = new_actions
    for tier in range(tiers(size)):
        here = [at for at, sidecar_tier in enumerate(tier_of) if sidecar_tier == tier]
        joined = total > 0 and _tier(total, size) == tier
        limit = 1 if tier == 0 and (total > 0 or len(here) > 1) else FANOUT
        if len(here) and len(here) + joined >= limit:
            chosen.extend(here)
            total += sum(sizes[at] for at in here)
    return sorted(chosen)


def _tier(actions: int, size: int) -> int:
    """The tier of a sidecar; full ones have the highest number."""
    if actions >= size / 2:
        return tiers(size)
    return next(n for n in count() if actions < SMALLEST_TIER * FANOUT**n)
