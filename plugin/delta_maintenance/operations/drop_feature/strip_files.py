"""Commits that add files again without the fields of a feature that is being dropped.

Works in batches while other writers commit. Their changes to a file take precedence, so that no
removed file is restored. The next pass handles files that they add with the feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from delta_maintenance.errors import CommitConflictError
from delta_maintenance.operations.backfill_row_ids.batches import TouchedFiles
from delta_maintenance.operations.drop_feature.preparation import TRIES, Committer
from delta_maintenance.operations.drop_feature.traces import traced_files
from delta_maintenance.protocol.changes.drop import FeatureRemoval
from delta_maintenance.protocol.commit.conflicts import UNBACKFILL
from delta_maintenance.table.commit.concurrent_commits import advance
from delta_maintenance.table.commit.outcome import CommitOutcome, Conflicted, Landed
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.checkpoint_reader import UnusableCheckpointError
from delta_maintenance.table.read.snapshot import Snapshot, VanishedFileError
from delta_maintenance.table.write.checkpoint_spec import layout_of

_PASSES = 4
"""The maximum number of passes, while other writers keep adding files with the feature."""


@dataclass(slots=True, kw_only=True)
class FileStripping:
    """Removes the fields of a feature from all live files. Call `run` once."""

    committer: Committer
    removal: FeatureRemoval
    files_per_commit: int
    expected: int
    """The number of files before the first pass."""
    progress: Progress | None = None
    versions: list[int] = field(default_factory=list)
    """The versions that were committed."""
    _done: int = 0

    def run(self) -> int:
        """Returns a version in which no live file has any of the fields.

        Raises `CommitConflictError` if other writers keep adding such files or use the feature
        again.
        """
        for _ in range(_PASSES):
            snapshot = self.committer.snapshot()
            try:
                if not self._pass(snapshot):
                    return snapshot.version
            except VanishedFileError:
                # Another process is cleaning up; the next pass finds the remaining files.
                continue
        raise self._conflict(
            f"writers keep adding files with {self.removal.file_fields[0]}",
            "stop the writer that still uses the disabled feature, and run again",
        )

    def _pass(self, snapshot: Snapshot) -> bool:
        """Removes the fields from the files of the snapshot; returns whether any file had them."""
        base, touched = snapshot, TouchedFiles(snapshot.table)
        own: Landed | None = None
        found = False
        for batch in self._batches(snapshot):
            found = True
            outcome: CommitOutcome | None = None
            for _ in range(TRIES):
                moved = advance(base, own=own)
                base = self.committer.require_feature(moved.snapshot)
                touched.offer(moved.commits)
                self._require_off(base)
                files = touched.left_out_of(batch)
                outcome = self._commit(base, files) if files.num_rows else None
                if not isinstance(outcome, Conflicted):
                    break
            else:
                assert isinstance(outcome, Conflicted)
                raise outcome.as_error(snapshot.table)
            if isinstance(outcome, Landed):
                own = outcome
                self._tell(outcome)
        return found

    def _commit(self, base: Snapshot, files: pa.Table) -> CommitOutcome:
        parameters: dict[str, object] = {"batchId": str(len(self.versions))}
        transaction = self.committer.begin(base, UNBACKFILL, parameters=parameters)
        transaction.read_files(files)
        transaction.stage_adds(
            files.drop_columns([n for n in self.removal.file_fields if n in files.column_names])
        )
        return transaction.commit()

    def _batches(self, snapshot: Snapshot) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        count = 0
        for files in self._files(snapshot):
            waiting.append(files)
            count += files.num_rows
            while count >= self.files_per_commit:
                together = pa.concat_tables(waiting, promote_options="permissive")
                yield together.slice(0, self.files_per_commit)
                count -= self.files_per_commit
                waiting = [together.slice(self.files_per_commit)]
        if count:
            yield pa.concat_tables(waiting, promote_options="permissive")

    def _files(self, snapshot: Snapshot) -> Iterator[pa.Table]:
        """Yields the files to commit again, with statistics as JSON, as in all commits."""
        layout = replace(
            layout_of(snapshot, zone=None),
            stats_as_json=True,
            statistics_type=None,
            partition_types=None,
        )
        try:
            for files in traced_files(snapshot, self.removal):
                if files.num_rows:
                    layout = layout.widened(files.schema, pa.schema([]))
                    chunks = layout.adds(files).chunks
                    yield pa.Table.from_batches(
                        [pa.RecordBatch.from_struct_array(chunk) for chunk in chunks]
                    )
        except VanishedFileError:
            raise
        except UnusableCheckpointError as error:
            # Files that were already yielded are repeated, and added once more unchanged.
            yield from self._files(snapshot.avoiding(error))

    def _require_off(self, snapshot: Snapshot) -> None:
        # While the feature is enabled, files without its fields would be assigned new ones.
        trace = self.removal.metadata_trace(snapshot.metadata)
        if trace is not None:
            raise self._conflict(
                f"{trace} uses {self.committer.feature} again, although it was disabled",
                "plan again after other writers have stopped changing this",
            )

    def _conflict(self, problem: str, remedy: str) -> CommitConflictError:
        return CommitConflictError(problem, table=self.committer.table.uri, remedy=remedy)

    def _tell(self, landed: Landed) -> None:
        self.versions.append(landed.version)
        self._done += landed.num_adds
        if self.progress is not None:
            self.progress("strip-files", min(self._done, self.expected), self.expected)
