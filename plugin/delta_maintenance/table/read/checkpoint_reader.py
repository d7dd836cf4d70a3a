"""Reads checkpoints of all kinds: classic, multi-part or V2, Parquet or JSON.

Implements "Checkpoints" and "V2 Spec" for readers. A checkpoint with a `checkpointMetadata` action
is V2, whatever its name. Any problem that makes a checkpoint unusable raises
`UnusableCheckpointError`, and the caller falls back to another base.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from delta_maintenance.errors import (
    CorruptTableError,
    DeltaMaintenanceError,
    InvalidRequestError,
    OversizedFileError,
)
from delta_maintenance.lazy import read_once
from delta_maintenance.protocol.actions.model import Sidecar
from delta_maintenance.protocol.actions.paths import file_locations
from delta_maintenance.protocol.delta_log.file_names import SIDECAR_DIRECTORY, LogFileKind
from delta_maintenance.protocol.delta_log.last_checkpoint import LastCheckpointHint
from delta_maintenance.protocol.delta_log.sidecars import (
    SidecarSummary,
    exact_counts,
    stated_actions,
    stated_summary,
    stated_sums,
)
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.protocol.ndjson.parse import FileLines, MapKeys, parse_file_actions
from delta_maintenance.protocol.ndjson.split import SingleActions, parse_other_lines, split
from delta_maintenance.storage.core.base import Store
from delta_maintenance.storage.core.paths import check_path
from delta_maintenance.table.read.actions_file import (
    FILE_COLUMNS,
    ActionsFile,
    FileActionBatch,
    UnusableCheckpointError,
    problem_of,
)
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, read_text
from delta_maintenance.table.read.segment import CheckpointFiles

__all__ = ["FILE_COLUMNS", "FileActionBatch", "UnusableCheckpointError"]

_SINGLES = (
    "protocol",
    "metaData",
    "txn",
    "domainMetadata",
    "rowIdHighWaterMark",
    "checkpointMetadata",
    "sidecar",
)
_PLAIN_NAME = "[0-9A-Za-z_-][0-9A-Za-z._-]*"
"""File names that are the same with and without URI encoding."""
_PARALLEL_FOOTERS = 8
_FILES_PER_RELEASE = 32
"""The number of sidecars after which free memory is returned to the system."""


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """File actions of a checkpoint that another process can read independently of the others."""

    path: str
    """Relative to the table root."""
    row_groups: tuple[int, ...] | None
    """The row groups of a Parquet file; None for a whole JSON file."""


class Checkpoint:
    """An opened checkpoint: its non-file actions in memory, its file actions as a stream.

    Opening reads the footers of all Parquet files, so that a truncated part or sidecar is detected
    before it is used. Without `open_sidecars`, only the references to sidecars are known: the
    sidecars may be missing, and their file actions are not available. With `trust_tags`, the
    footers of sidecars are read on demand if the tags of the checkpoint contain the number of
    actions in the sidecars.
    """

    def __init__(
        self,
        store: Store,
        files: CheckpointFiles,
        *,
        sidecar_store: Store | None = None,
        open_sidecars: bool = True,
        trust_tags: bool = False,
    ) -> None:
        self._store = store
        # The top-level file may be staged while its sidecars are already published.
        self._sidecar_store = sidecar_store or store
        self.files = files
        self.singles = SingleActions()
        self._inline: FileLines | None = None
        self._parquet: list[ActionsFile] = []
        try:
            self._open_top_level()
            self.sidecars: tuple[Sidecar, ...] = tuple(self.singles.sidecars)
            self._check_version_2()
            root = self._sidecar_store.root
            self.sidecar_paths = tuple(_sidecar_path(sidecar, root) for sidecar in self.sidecars)
            """The paths of the sidecars, relative to the table root."""
            if open_sidecars:
                self._open_sidecars(at_once=not trust_tags or self._stated_actions is None)
        except UnusableCheckpointError as error:
            raise error.locate(
                version=files.version, file=f"{LOG_DIRECTORY}/{files.name}"
            ) from None
        except Exception as error:
            raise self._damage_error(error) from None

    @property
    def is_v2(self) -> bool:
        """Whether it is a V2 checkpoint by its contents."""
        return bool(self.singles.checkpoint_metadata)

    @property
    def size_bytes(self) -> int:
        """The total size of its top-level files and sidecars in bytes."""
        top_level = sum(entry.status.size for entry in self.files.entries)
        return top_level + sum(sidecar.size_in_bytes for sidecar in self.sidecars)

    @property
    def kind(self) -> str:
        """`classic`, `multi-part`, `v2-classic`, `v2-json` or `v2-parquet`."""
        file = self.files.entries[0].file
        if file.parts is not None:
            return "multi-part"
        if file.uuid is not None:
            return f"v2-{file.encoding}"
        return "v2-classic" if self.is_v2 else "classic"

    @property
    def schema(self) -> pa.Schema | None:
        """The Parquet schema of a file with file actions; None if they are all in JSON."""
        return self._parquet[-1].schema if self._parquet else None

    def file_actions(
        self,
        *,
        keys: MapKeys,
        fields: Mapping[str, Collection[str]] | None = None,
        only: Collection[str] | None = None,
        actions: Collection[str] = tuple(FILE_COLUMNS),
    ) -> Iterator[FileActionBatch]:
        """Yields the adds and removes, with all fields or only the named ones of each action.

        Parsed statistics and partition values are included if all fields are requested, or by name.
        `only` names the sidecars to read, by their `sidecar_paths`. Columns of other `actions` than
        the named ones are not read; lines of JSON are.
        """
        try:
            if self._inline is not None:
                parsed = parse_file_actions([self._inline], keys=keys, fields=fields)
                yield FileActionBatch(parsed.adds, parsed.removes)
            files = (file for file in self._parquet if only is None or file.path in only)
            for number, parquet in enumerate(files, 1):
                yield from parquet.file_actions(keys, fields, actions=actions)
                if number % _FILES_PER_RELEASE == 0:
                    release_unused_memory()
        except Exception as error:
            raise self._damage_error(error) from error

    def random_adds(
        self, random: np.random.Generator, *, keys: MapKeys, fields: Collection[str], most_rows: int
    ) -> Iterator[FileActionBatch]:
        """Yields some fields of the adds of one random row group.

        Yields nothing for a JSON file, nor if the random sidecar has no adds. A row group with more
        than `most_rows` rows is read so often that these are the rows on average.
        """
        sizes = [sidecar.size_in_bytes for sidecar in self.sidecars]
        sizes = sizes or [entry.status.size for entry in self.files.entries]
        if len(sizes) != len(self._parquet):
            return
        try:
            file = self._parquet[_choice(random, sizes)]
            rows = file.rows_by_group("add")
            group = [*rows][_choice(random, [*rows.values()])] if rows else None
            if group is not None and random.random() * rows[group] < most_rows:
                by_action = dict.fromkeys(FILE_COLUMNS, fields)
                yield from file.file_actions(keys, by_action, [group], actions=["add"])
        except Exception as error:
            raise self._damage_error(error) from error

    def sidecar_schema(self, path: str) -> pa.Schema:
        """Returns the Parquet schema of a sidecar, by its path."""
        try:
            return next(file.schema for file in self._parquet if file.path == path)
        except Exception as error:
            raise self._damage_error(error) from error

    def parts(self, max_bytes: int, *, only: Collection[str] | None = None) -> list[CheckpointPart]:
        """Divides the file actions into parts of about `max_bytes` bytes of memory.

        A row group is never divided. `only` names the sidecars to read, by their `sidecar_paths`.
        """
        if self._inline is not None:
            return [CheckpointPart(self.files.entries[0].path, None)]
        return [
            CheckpointPart(parquet.path, groups)
            for parquet in self._parquet
            if only is None or parquet.path in only
            for groups in parquet.row_groups_by_size(max_bytes)
        ]

    @property
    def row_count(self) -> int:
        """The number of rows of the files with file actions; a few rows are other actions."""
        if self.sidecars and self._stated_actions is not None:
            return self._stated_actions
        count: int = sum(parquet.metadata.num_rows for parquet in self._parquet)
        return count if self._inline is None else count + self._inline.count

    def action_counts(self, *, only: Collection[str] | None = None) -> tuple[int, int]:
        """Returns the maximum numbers of adds and removes according to the footers.

        An estimate for dividing the work. Inline actions of a JSON file count as adds. `only` names
        the sidecars, by their `sidecar_paths`. The tags contain these numbers too, but work that is
        divided by a wrong tag may have any number of tasks.
        """
        inline = 0 if self._inline is None else self._inline.count
        files = [file for file in self._parquet if only is None or file.path in only]
        adds, removes = (sum(file.most_of(action) for file in files) for action in FILE_COLUMNS)
        return adds + inline, removes

    @property
    def stated_adds(self) -> tuple[int | None, int | None]:
        """Returns the number of adds and the size of their files; None for values that only reading
        can determine.

        They come from the tags of a V2 checkpoint or, for the number, from the footers that were
        read when it was opened.
        """
        metadata = self.singles.checkpoint_metadata
        tags = metadata[0].tags if metadata and self.sidecars else None
        sums, counts = stated_sums(tags), exact_counts(tags)
        if sums is not None:
            agrees = counts is None or counts[0] == sums.adds
            return (sums.adds, sums.size) if agrees else (None, None)
        return (counts[0] if counts is not None else self.exact_adds), None

    @read_once
    def exact_adds(self) -> int | None:
        """The number of adds according to the footers, or the lines of a JSON file; None if they do
        not tell.
        """
        if self.sidecars and len(self._parquet) != len(self.sidecars):
            return None
        numbers = [parquet.count_of("add") for parquet in self._parquet]
        for run in () if self._inline is None else self._inline.runs:
            numbers.append({"add": run.count, "remove": 0}.get(run.action or ""))
        return None if None in numbers else sum(number or 0 for number in numbers)

    def hint_problem(self, hint: LastCheckpointHint | None) -> str | None:
        """Returns how the hint contradicts the checkpoint, as one clause. Reads nothing.

        Only the number of files is compared. Writers disagree about the meaning of `size`.
        """
        if hint is None or hint.version != self.files.version:
            return None
        stated, files = hint.num_of_add_files, self.stated_adds[0]
        if None in (stated, files) or stated == files:
            return None
        return f"{self.files.name} has {files} files, but _last_checkpoint states {stated}"

    def tag_problem(self, *, footers: bool) -> str | None:
        """Returns how the tags of the checkpoint contradict each other or, with `footers`, those of
        its sidecars, as one clause.
        """
        if not self.sidecars:
            return None
        tags = self.singles.checkpoint_metadata[0].tags
        sums, counts = stated_sums(tags), exact_counts(tags)
        summaries = [stated_summary(sidecar) for sidecar in self.sidecars]
        tallies = [summary.tally for summary in summaries if summary is not None]
        if sums is not None and len(tallies) == len(summaries) and Tally.total(tallies) != sums:
            return "the sums of the sidecars do not add up"
        if None not in (sums, counts) and counts != (sums and (sums.adds, sums.tombstones)):
            return "the numbers of files differ"
        return self._footer_problem(summaries, counts) if footers else None

    def _footer_problem(
        self, summaries: Sequence[SidecarSummary | None], counts: tuple[int, int] | None
    ) -> str | None:
        self._read_footers()
        total = (0, 0)
        for sidecar, summary, file in zip(self.sidecars, summaries, self._parquet, strict=True):
            if file.size != sidecar.size_in_bytes:
                return f"{file.path} has {file.size} bytes instead of {sidecar.size_in_bytes}"
            adds, removes = file.count_of("add"), file.count_of("remove")
            if adds is None or removes is None:
                return None
            total = total[0] + adds, total[1] + removes
            tally = None if summary is None else summary.tally
            if tally is not None and (adds, removes) != (tally.adds, tally.tombstones):
                return f"{file.path} has {adds} files and {removes} tombstones"
        if counts not in (None, total):
            return f"the sidecars have {total[0]} files and {total[1]} tombstones"
        return None

    def _read_footers(self) -> None:
        """Reads the footers of all sidecars, several at the same time if the store is far away."""
        if self._sidecar_store.is_near:
            for number, file in enumerate(self._parquet, 1):
                file.size  # noqa: B018  reads the footer
                if number % _FILES_PER_RELEASE == 0:
                    release_unused_memory()
            return
        with ThreadPoolExecutor(_PARALLEL_FOOTERS) as pool:
            list(pool.map(lambda file: file.size, self._parquet))

    @property
    def _stated_actions(self) -> int | None:
        metadata = self.singles.checkpoint_metadata
        return stated_actions(metadata[0].tags) if metadata else None

    def _open_top_level(self) -> None:
        for entry in self.files.entries:
            if entry.file.encoding == "json":
                self.singles, self._inline = _read_json(self._store, entry.path)
            else:
                parquet = ActionsFile(self._store, entry.path)
                for name, values in parquet.values(_SINGLES).items():
                    for value in values:
                        self.singles.take(name, value)
                self._parquet.append(parquet)
        if self.singles.repeated:
            raise self._unusable(f"two actions for {min(self.singles.repeated)}")

    def _check_version_2(self) -> None:
        checkpoint_metadata = self.singles.checkpoint_metadata
        if not checkpoint_metadata:
            if self.files.kind is LogFileKind.UUID_CHECKPOINT:
                raise self._unusable("a UUID-named checkpoint without checkpointMetadata")
            if self.sidecars:
                raise self._unusable("a checkpoint with sidecars but without checkpointMetadata")
            return
        if self.files.kind is LogFileKind.MULTIPART_CHECKPOINT:
            raise self._unusable("a multi-part checkpoint with checkpointMetadata")
        if len(checkpoint_metadata) > 1:
            raise self._unusable("a checkpoint with several checkpointMetadata actions")
        if checkpoint_metadata[0].version != self.files.version:
            raise self._unusable(
                f"checkpointMetadata states version {checkpoint_metadata[0].version}"
            )
        if self.sidecars and self._has_inline_files():
            raise self._unusable("a checkpoint with file actions both inline and in sidecars")

    def _has_inline_files(self) -> bool:
        return self._inline is not None or any(file.has_file_actions() for file in self._parquet)

    def _open_sidecars(self, *, at_once: bool) -> None:
        if not self.sidecar_paths:
            return
        if not at_once:
            self._parquet = [
                ActionsFile(self._sidecar_store, path, at_once=False) for path in self.sidecar_paths
            ]
            return
        with ThreadPoolExecutor(_PARALLEL_FOOTERS) as pool:
            opened = pool.map(
                lambda path: ActionsFile(self._sidecar_store, path), self.sidecar_paths
            )
            self._parquet = list(opened)

    def _unusable(self, problem: str, remedy: str | None = None) -> UnusableCheckpointError:
        return UnusableCheckpointError(
            f"the checkpoint cannot be used: {problem}",
            version=self.files.version,
            file=f"{LOG_DIRECTORY}/{self.files.name}",
            remedy=remedy or "write a new checkpoint, or restore this one from a backup",
        )

    def _damage_error(self, error: Exception) -> DeltaMaintenanceError:
        """Converts a decoding error, because any such error makes the checkpoint unusable."""
        if isinstance(error, DeltaMaintenanceError) and not isinstance(error, CorruptTableError):
            # A failure of the store, or an invalid request of the caller.
            return error
        remedy = error.remedy if isinstance(error, OversizedFileError) else None
        return self._unusable(problem_of(error), remedy)


def _choice(random: np.random.Generator, weights: Sequence[int]) -> int:
    """Returns a random position; each as often as its weight says."""
    return int(np.searchsorted(np.cumsum(weights), random.random() * sum(weights), "right"))


def release_unused_memory() -> None:
    """Returns free memory to the system.

    Footers stay in memory between the buffers of the columns. The C library reuses such gaps badly:
    without this call, reading 500 sidecars leaves 800 MB of them.
    """
    pa.default_memory_pool().release_unused()


def read_part(
    store: Store,
    part: CheckpointPart,
    *,
    keys: MapKeys,
    fields: Mapping[str, Collection[str]] | None = None,
) -> Iterator[FileActionBatch]:
    """Reads the adds and removes of a part, with all fields or only the named ones of each action.

    Raises `UnusableCheckpointError`, which names the damaged file.
    """
    try:
        if part.row_groups is not None:
            parquet = ActionsFile(store, part.path)
            yield from parquet.file_actions(keys, fields, part.row_groups)
            return
        _, lines = _read_json(store, part.path)
        if lines is not None:
            parsed = parse_file_actions([lines], keys=keys, fields=fields)
            yield FileActionBatch(parsed.adds, parsed.removes)
    except Exception as error:
        if isinstance(error, DeltaMaintenanceError) and not isinstance(error, CorruptTableError):
            raise
        problem = f"the checkpoint cannot be used: {problem_of(error)}"
        raise UnusableCheckpointError(problem, file=part.path) from error


def _read_json(store: Store, path: str) -> tuple[SingleActions, FileLines | None]:
    text = split(path.rpartition("/")[2], read_text(store, path))
    singles, beside = parse_other_lines(text)
    lines = FileLines.of(text, beside)
    return singles, lines if lines.runs else None


def _sidecar_path(sidecar: Sidecar, root: str) -> str:
    """Returns the path of a sidecar relative to the table root; always in the table's own
    folder.
    """
    folder = f"{LOG_DIRECTORY}/{SIDECAR_DIRECTORY}"
    if re.fullmatch(_PLAIN_NAME, sidecar.path):
        return f"{folder}/{sidecar.path}"
    path = sidecar.path if re.search("[/:]", sidecar.path) else f"{folder}/{sidecar.path}"
    location = file_locations(pa.array([path], pa.string()), root=root)[0].as_py()
    directory, _, name = location.decode(errors="surrogateescape").rpartition("/")
    try:
        if directory in (SIDECAR_DIRECTORY, folder):
            return check_path(f"{folder}/{name}")
    except InvalidRequestError:
        pass
    raise UnusableCheckpointError(f"the sidecar {sidecar.path!r} is outside {folder}")
