"""Removes column mapping from a table that other writers use.

A table with both kinds of files could not be read, so one commit changes the metadata and replaces
all files. Before that, the files are rewritten, bin by bin, without being committed. If other
writers commit in the meantime, only the files that they added or changed are rewritten, and the
commit is retried.

Without a mapping, readers find columns by their logical names. If all physical names equal the
logical ones, files are kept, except those with a dropped column: a later column with its name would
restore its values. Implements the writer requirements of "Column Mapping" for a feature that will
be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.errors import CommitConflictError, StorageError, VerificationError
from delta_maintenance.operations.drop_feature.file_rewrites import left_out
from delta_maintenance.operations.drop_feature.preparation import Committer
from delta_maintenance.operations.rewriting.choice import Choice, ChoiceRules, choose, known_ratio
from delta_maintenance.operations.rewriting.commits import CommitSettings, RewriteCommits
from delta_maintenance.operations.rewriting.contract import Contract, unmapped_domains
from delta_maintenance.operations.rewriting.engine import BinOutcome, LocalEngine
from delta_maintenance.operations.rewriting.live_columns import (
    PHYSICAL_NAMES,
    FooterReasons,
    LiveColumns,
    Mask,
    doubled_files_error,
    live_columns,
)
from delta_maintenance.operations.rewriting.new_files import target_size
from delta_maintenance.operations.rewriting.pending import Pending
from delta_maintenance.operations.rewriting.run import Work
from delta_maintenance.operations.rewriting.sources import chosen_adds
from delta_maintenance.protocol.changes.usage import without_mapping
from delta_maintenance.protocol.data_files.other_columns import may_have_dropped_columns
from delta_maintenance.protocol.schema.column_mapping import has_other_names
from delta_maintenance.protocol.schema.types import column_mapping_mode, parse_schema
from delta_maintenance.table.commit.beside_writers import Ending, commit_beside_writers
from delta_maintenance.table.commit.outcome import Conflicted, lost_races
from delta_maintenance.table.commit.transaction import Transaction
from delta_maintenance.table.data.bins import Bin
from delta_maintenance.table.data.data_file_reader import SourceFile
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.partition_codes import partition_types
from delta_maintenance.table.read.snapshot import Snapshot

OPERATION = "REMOVE COLUMN MAPPING"
"""The operation in `commitInfo`. Delta Spark uses the same name."""
_SMALL = 0.75
"""Files smaller than this share of the target are merged, as in `optimize`."""

Extent = Literal["no file", "by footer", "every file"]
"""The files to rewrite. `by footer`: those with other column names in their footers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Data files of one version that must be rewritten."""

    files: LiveColumns
    choice: Choice
    kept: pa.Array
    """The paths of files that need no rewrite according to their footers."""
    group_bytes: int
    """The size of the row groups of new files in memory."""

    @property
    def count(self) -> int:
        """The number of files to rewrite."""
        return len(self.choice.rows)

    @property
    def bytes(self) -> int:
        """The size of these files in bytes."""
        return int(self.files.size[self.choice.rows].sum())


def extent(snapshot: Snapshot) -> Extent:
    """Returns which files of a table must be rewritten, according to its schema."""
    metadata = snapshot.metadata
    mode = column_mapping_mode(snapshot.protocol, metadata.configuration)
    if mode == "none":
        return "no file"
    if has_other_names(parse_schema(metadata.schema_string or ""), mode):
        return "every file"
    # In mode `id`, files may have columns with arbitrary names.
    if mode == "id" or may_have_dropped_columns(metadata, mode):
        return "by footer"
    return "no file"


def unmapping_contract(snapshot: Snapshot, *, target_bytes: int) -> Contract:
    """Returns how the files must be written. Raises the errors of `Contract.of`."""
    return Contract.without_mapping(snapshot, target_bytes=target_bytes, proof="rows")


def planned_conversion(snapshot: Snapshot) -> Conversion | None:
    """Returns the files to rewrite; None if the schema shows that there are none.

    Reads footers if the schema does not decide.
    """
    if extent(snapshot) == "no file":
        return None
    files = live_columns(snapshot)
    contract = unmapping_contract(
        snapshot, target_bytes=target_size(snapshot, int(files.size.sum()))
    )
    if files.doubled.any():
        raise doubled_files_error(snapshot)
    nothing = np.zeros(files.count, np.bool_)
    return conversion(snapshot, files, contract, covered=nothing, kept=pa.array([], pa.string()))


def conversion(
    snapshot: Snapshot, files: LiveColumns, contract: Contract, *, covered: Mask, kept: pa.Array
) -> Conversion:
    """Returns the files to rewrite, without those that are already `covered`.

    `kept` has the paths of files whose footers were already read. Raises the error of a footer that
    cannot be read.
    """
    is_mapped = ~covered
    if extent(snapshot) == "every file":
        kept = kept[:0]
    else:
        is_kept = np.asarray(pc.is_in(files.path, value_set=kept).to_numpy(), np.bool_)
        reading = FooterReasons(
            store=snapshot.log.store,
            layout=contract.spec.files.layout,
            wanted=[PHYSICAL_NAMES],
            strict=True,
        )
        looked_at = is_mapped & ~is_kept
        is_mapped = reading(files, looked_at)[PHYSICAL_NAMES]
        fresh = files.path.filter(pa.array(looked_at & ~is_mapped))
        kept = pa.concat_arrays([kept, *fresh.chunks])
    target = contract.spec.target_bytes
    rules = ChoiceRules(
        target_bytes=target, small_bytes=int(target * _SMALL), deleted_share=None, full=True
    )
    footers: Mapping[str, Mask] = {PHYSICAL_NAMES: is_mapped}
    # Small files that need no rewrite are not merged either.
    choice = choose(
        files, rules, taken=~is_mapped, footers=footers, ratio=known_ratio(files) or 1.0
    )
    group_bytes = contract.spec.files.group_bytes
    return Conversion(files=files, choice=choice, kept=kept, group_bytes=group_bytes)


def remove_mapping(committer: Committer, *, progress: Progress | None) -> int | None:
    """Commits the table without its mapping; returns the version, or None if it has no mapping.

    Raises the error of `left_out` if a file is not rewritten, `CommitConflictError` if other
    writers change the columns in the meantime or repeatedly commit first, and `CommitUnknownError`.
    """

    def stage(snapshot: Snapshot) -> Transaction | Ending | None:
        if without_mapping(snapshot.metadata) == snapshot.metadata:
            return None
        if extent(snapshot) != "no file":
            return _Unmapping(committer, snapshot, progress).run()
        transaction = committer.begin(snapshot, OPERATION)
        _stage(transaction, snapshot)
        return transaction

    # Later versions may have columns with other physical names.
    return committer.commit(stage, only_next=True)


def _stage(txn: Transaction, snapshot: Snapshot) -> None:
    txn.stage_metadata(without_mapping(snapshot.metadata))
    before = snapshot.domain_metadata
    for name, configuration in unmapped_domains(snapshot).items():
        if configuration != before[name]:
            txn.stage_domain(name, configuration)


class _Unmapping(RewriteCommits):
    """The bins of all files, and the one commit that replaces them."""

    def __init__(self, committer: Committer, snapshot: Snapshot, progress: Progress | None) -> None:
        target = target_size(snapshot, int(live_columns(snapshot).size.sum()))
        settings = CommitSettings(
            operation="REMOVE COLUMN MAPPING", parameters={}, writer=committer.writer
        )
        contract = unmapping_contract(snapshot, target_bytes=target)
        super().__init__(committer.table, snapshot, contract, settings)
        self._committer = committer
        self._progress = progress
        self._seen = snapshot.metadata
        self._kept = pa.array([], pa.string())
        self._bytes = self._total = 0

    def run(self) -> Ending | None:
        """Returns the outcome of the commit; None if another process removed the mapping."""
        bins: list[Pending] = []
        looked_at: int | None = None

        def stage(base: Snapshot) -> Transaction | Conflicted | None:
            nonlocal bins, looked_at
            self._committer.require_feature(base)
            if without_mapping(base.metadata) == base.metadata:
                return None
            self._require_same_columns()
            for pending in bins:
                self._adjust(pending)
            open_bins = [pending for pending in bins if pending.fate is None]
            if looked_at != base.version or len(open_bins) < len(bins):
                fresh = self._convert_bins(open_bins)
                bins, looked_at = [*open_bins, *fresh], base.version
                if fresh:
                    # Other writers may have committed during the rewrite.
                    return lost_races(base.version + 1, attempts=0)
            return self._stage(bins)

        return commit_beside_writers(self._table.uri, self._move_on, stage, only_next=True)

    def _require_same_columns(self) -> None:
        if self.table_changed is not None:
            raise CommitConflictError(
                self.table_changed,
                table=self._table.uri,
                version=self._base.version,
                remedy="run again after other writers have stopped changing this",
            )
        if self._base.metadata != self._seen:
            # Files of other writers may contain columns that they added.
            target = self._contract.spec.target_bytes
            self._contract = unmapping_contract(self._base, target_bytes=target)
            self._seen = self._base.metadata

    def _convert_bins(self, bins: Sequence[Pending]) -> list[Pending]:
        """Returns bins of the live files that must be rewritten and that no bin covers."""
        files = live_columns(self._base)
        covered = _is_covered(files, bins)
        converted = conversion(self._base, files, self._contract, covered=covered, kept=self._kept)
        self._kept = converted.kept
        work = self._work(converted)
        if not work.count:
            return []
        self.plan_for(work.adds)
        self._total += int(pc.sum(work.adds["size"]).as_py() or 0)
        return self._rewritten(work)

    def _work(self, planned: Conversion) -> Work:
        choice = planned.choice
        return Work(
            adds=chosen_adds(self._base, planned.files, choice),
            bins=choice.bins,
            reasons=tuple(choice.reasons_of(row) for row in choice.rows.tolist()),
            partition_types=partition_types(self._base),
        )

    def _rewritten(self, work: Work) -> list[Pending]:
        names = _logical_names(self._base)
        done: list[Pending] = []
        engine = LocalEngine(self._table.store, new_id=self._settings.writer.new_id)
        bins: Iterator[Bin] = (
            _rename_partitions(work.bin(number), names) for number in range(work.count)
        )
        for outcome in engine.rewrite(bins, self._contract.spec):
            done.append(_pending(outcome, work))
            self._tell(done[-1])
        # Workers end in any order, and commits should not differ by it.
        done.sort(key=lambda pending: pending.done.bin.number)
        return done

    def _tell(self, pending: Pending) -> None:
        self._bytes += sum(source.size for source in pending.done.bin.sources)
        if self._progress is not None:
            self._progress("bytes rewritten", self._bytes, self._total, unit="bytes")

    def _stage_more(self, txn: Transaction) -> None:
        _stage(txn, self._base)

    def _metrics(
        self, bins: Sequence[Pending], adds: Sequence[Mapping[str, Any]], removes: pa.Table
    ) -> dict[str, str]:
        metrics = super()._metrics(bins, adds, removes)
        return {
            "numRewrittenFiles": metrics["numRemovedFiles"],
            "numOutputBytes": metrics["numAddedBytes"],
            "numRemovedBytes": metrics["numRemovedBytes"],
            "numCopiedRows": str(sum(pending.result.sums.rows for pending in bins)),
            "numDeletionVectorsRemoved": metrics["numDeletionVectorsRemoved"],
        }


def _is_covered(files: LiveColumns, bins: Sequence[Pending]) -> Mask:
    paths = [chunk for pending in bins for chunk in pending.adds["path"].chunks]
    is_covered = pc.is_in(files.path, value_set=pa.chunked_array(paths, pa.string()))
    return np.asarray(is_covered.to_numpy(), np.bool_)


def _logical_names(snapshot: Snapshot) -> Mapping[str, str]:
    """Returns the logical name of each partition column by its physical name."""
    logical = snapshot.metadata.partition_columns
    return dict(zip(snapshot.log.physical_partition_columns, logical, strict=True))


def _rename_partitions(work: Bin, names: Mapping[str, str]) -> Bin:
    """Returns the bin with the keys of its partition values renamed as in the new files."""
    if all(name == logical for name, logical in names.items()):
        return work

    def renamed(source: SourceFile) -> SourceFile:
        values = ((names.get(name, name), value) for name, value in source.partition_values)
        return replace(source, partition_values=tuple(sorted(values)))

    return replace(work, sources=tuple(renamed(source) for source in work.sources))


def _pending(outcome: BinOutcome, work: Work) -> Pending:
    done = outcome.done
    if done is None:
        failed = VerificationError if outcome.failure == "not-proved" else StorageError
        raise failed(f"a data file is not rewritten: {outcome.problem}", remedy="run again")
    for refused in done.refused:
        raise left_out("columnMapping", refused.problem, damaged=refused.damaged)
    return Pending(done=done, adds=work.adds_of(outcome.number))
