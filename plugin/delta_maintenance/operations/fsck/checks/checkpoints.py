"""Checks whether checkpoints can be read and agree with the commits.

Implements "Checkpoints", "V2 Spec" and "Last Checkpoint File" as far as they can be checked
afterwards. A checkpoint may omit expired tombstones and transactions; everything else must agree
with the log.

If the log does not reach back to version 0, the history begins with a checkpoint, its base. Then a
difference alone does not say which of two checkpoints is wrong. The commits between them say it, or
tombstones of the base, or the checksums of versions between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_maintenance.clock import epoch_millis
from delta_maintenance.operations.fsck.findings import Findings
from delta_maintenance.operations.fsck.inputs import HISTORY_FIELDS, LogHistory
from delta_maintenance.protocol.actions.file_columns import logical_file_keys
from delta_maintenance.protocol.actions.model import Protocol
from delta_maintenance.protocol.actions.paths import written_locations
from delta_maintenance.protocol.columns import MembershipFilter, booleans, hash_texts
from delta_maintenance.protocol.delta_log.file_history import (
    ABSENT,
    COMPARED_FIELDS,
    FileHistory,
    Ints,
    cardinalities,
    numbers,
)
from delta_maintenance.protocol.delta_log.file_names import LAST_CHECKPOINT, LogFileKind
from delta_maintenance.protocol.delta_log.last_checkpoint import parse_hint
from delta_maintenance.protocol.delta_log.replay import StateReplay
from delta_maintenance.protocol.delta_log.sidecars import (
    LOCATION_BYTES,
    SidecarSummary,
    exact_counts,
    stated_summary,
    stated_sums,
)
from delta_maintenance.protocol.delta_log.version_checksum import Tally
from delta_maintenance.protocol.features.properties import TableProperties
from delta_maintenance.protocol.ndjson.parse import MapKeys
from delta_maintenance.protocol.ndjson.split import SingleActions
from delta_maintenance.storage.core.base import Store
from delta_maintenance.table.progress import Progress
from delta_maintenance.table.read.checkpoint_reader import (
    Checkpoint,
    FileActionBatch,
    UnusableCheckpointError,
)
from delta_maintenance.table.read.log_file import LOG_DIRECTORY, read_hint
from delta_maintenance.table.read.log_inventory import LogInventory
from delta_maintenance.table.read.segment import CheckpointFiles
from delta_maintenance.table.read.sidecar_search import read_filter


class SidecarCheck:
    """Collects the file actions of one sidecar and compares them with its summary."""

    def __init__(self, store: Store, path: str, summary: SidecarSummary | None) -> None:
        self._summary = summary
        self._filter: MembershipFilter | None = None
        if summary is not None:
            self._filter = read_filter(store, path, summary)
        self.found = Tally()
        """The tally of the file actions so far."""
        self._unknown = False

    def take(self, batch: FileActionBatch) -> None:
        """Adds a batch of its file actions."""
        self.found.include(batch.adds, batch.removes)
        summary = self._summary
        if summary is None:
            return
        for rows in (batch.adds, batch.removes):
            for chunk in rows["path"].chunks:
                locations = written_locations(chunk)
                if not len(locations):
                    continue
                if self._filter is not None:
                    self._unknown |= not self._filter.may_hold(hash_texts(locations)).all()
                ends = pc.min_max(pc.binary_slice(locations, 0, LOCATION_BYTES)).as_py()
                self._unknown |= ends["min"] < summary.first_location
                self._unknown |= ends["max"] > summary.last_location

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields the problems after all batches: the kind of the finding, and a clause."""
        summary = self._summary
        if summary is None:
            return
        if summary.tally != self.found:
            problem = f"the sidecar contains {self.found}, but its tags state {summary.tally}"
            yield "sidecar-differs", problem
        if self._unknown:
            yield "sidecar-summary", "the sidecar contains files that its filter lacks"
        if summary.filter is not None and self._filter is None:
            yield "sidecar-summary", "its filter cannot be decoded"


_EXPIRY = "delta.setTransactionRetentionDuration"
_RETENTION = "delta.deletedFileRetentionDuration"
_CLOCK_SKEW = timedelta(hours=1)
"""How far the clock of the writer of a checkpoint may have been ahead of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProblem:
    """Why a checkpoint is not to be used."""

    kind: str
    """The kind of the finding."""
    is_refuted: bool = False
    """Whether commits contradict it, whatever the base of the history says."""
    disputed: str | None = None
    """A statement of the checkpoint that contradicts the base, but no commit and no tombstone; one
    clause.
    """


def check_checkpoints(
    store: Store,
    inventory: LogInventory,
    history: LogHistory | None,
    findings: Findings,
    *,
    now: datetime,
    progress: Progress | None = None,
) -> dict[str, CheckpointProblem]:
    """Reads every complete checkpoint, and compares those of versions that the history covers.

    Returns the unusable checkpoints, by the name of their first file.
    """
    bad: dict[str, CheckpointProblem] = {}
    newest = None if history is None else next(history.states([history.last]), None)
    latest_retention = None if newest is None else _retention(newest[1])
    checkpoints = inventory.listing.checkpoints
    sizes = {entry.path: entry.status.size for entry in inventory.entries}
    referenced: set[str] = set()
    states = iter(() if history is None else history.states(c.version for c in checkpoints))
    current = next(states, None)
    for done, files in enumerate(checkpoints, 1):
        while current is not None and current[0] < files.version:
            current = next(states, None)
        state = None if current is None or current[0] != files.version else current[1]
        retentions = (latest_retention, None if state is None else _retention(state))
        problem, before = None, _sidecar_findings(findings)
        try:
            sidecars = Checkpoint(store, files, open_sidecars=False)
            referenced.update(sidecars.sidecar_paths)
            if not _sidecars_are_there(sidecars, sizes, findings):
                problem = CheckpointProblem(kind="missing-sidecar")
            else:
                unexpired_from = _unexpired_from(now, retentions)
                problem = _problem(store, files, history, state, findings, unexpired_from)
        except UnusableCheckpointError as error:
            problem = CheckpointProblem(kind="unreadable-checkpoint")
            findings.add(
                "unreadable-checkpoint",
                error.problem,
                version=files.version,
                path=f"{LOG_DIRECTORY}/{files.name}",
            )
        if problem is None and _sidecar_findings(findings) > before:
            problem = CheckpointProblem(kind="sidecar-differs")
        if problem is not None:
            bad[files.name] = problem
        if progress is not None:
            progress("checkpoints", done, len(checkpoints))
    for entry in inventory.entries:
        if entry.file.kind is LogFileKind.SIDECAR and entry.path not in referenced:
            findings.add("orphan-sidecar", "no checkpoint refers to the sidecar", path=entry.path)
    return bad


def _sidecar_findings(findings: Findings) -> int:
    """Returns how many sidecars differ from what their checkpoints state."""
    return findings.counts["sidecar-size"] + findings.counts["sidecar-differs"]


def check_hint(store: Store, inventory: LogInventory, findings: Findings) -> None:
    """Checks that `_last_checkpoint` is readable, names an existing checkpoint, and states its
    number of files.
    """
    path = f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"
    try:
        hint = parse_hint(read_hint(store, path))
    except FileNotFoundError:
        return
    if hint is None:
        findings.add("damaged-hint", "the hint is empty, damaged, or fails its checksum", path=path)
        return
    named = [files for files in inventory.listing.checkpoints if files.version == hint.version]
    if not named:
        problem = f"the hint names version {hint.version}, which has no complete checkpoint"
        findings.add("dangling-hint", problem, version=hint.version, path=path)
        return
    # A checkpoint that cannot be read is another finding.
    with suppress(UnusableCheckpointError):
        checkpoint = Checkpoint(store, named[-1], trust_tags=True)
        if (differs := checkpoint.hint_problem(hint)) is not None:
            findings.add("hint-differs", differs, version=hint.version, path=path)


def _sidecars_are_there(checkpoint: Checkpoint, sizes: dict[str, int], findings: Findings) -> bool:
    files = checkpoint.files
    there = True
    for sidecar, path in zip(checkpoint.sidecars, checkpoint.sidecar_paths, strict=True):
        size = sizes.get(path)
        if size is None:
            there = False
            problem = f"{files.name} refers to this sidecar, which does not exist"
            findings.add("missing-sidecar", problem, version=files.version, path=path)
        elif size != sidecar.size_in_bytes:
            problem = (
                f"the sidecar has {size} bytes, but {files.name} states {sidecar.size_in_bytes}"
            )
            findings.add("sidecar-size", problem, version=files.version, path=path)
    return there


def _retention(state: StateReplay) -> timedelta | None:
    """Returns for how long a checkpoint must keep tombstones; None if that is not known."""
    if state.metadata is None:
        return None
    properties = TableProperties.from_configuration(state.metadata.configuration)
    is_known = not any(_RETENTION in problem for problem in properties.problems)
    return properties.deleted_file_retention if is_known else None


def _unexpired_from(now: datetime, retentions: tuple[timedelta | None, ...]) -> int | None:
    """Returns the time in milliseconds since 1970-01-01 UTC from which on every writer had to keep
    tombstones, whichever of the retentions was in force; None if that is not known.
    """
    known_retentions = [retention for retention in retentions if retention is not None]
    if len(known_retentions) < len(retentions):
        return None
    try:
        return epoch_millis(now - min(known_retentions) + _CLOCK_SKEW)
    except OverflowError:
        return None


def _problem(
    store: Store,
    files: CheckpointFiles,
    history: LogHistory | None,
    state: StateReplay | None,
    findings: Findings,
    unexpired_from: int | None,
) -> CheckpointProblem | None:
    """Reads one checkpoint completely and compares it with the history."""
    checkpoint = Checkpoint(store, files)
    singles = checkpoint.singles
    if singles.protocol is None or singles.metadata is None:
        missing = "protocol" if singles.protocol is None else "metaData"
        raise UnusableCheckpointError(f"the checkpoint has no {missing}")
    is_base = history is not None and history.base is not None and history.base.files == files
    comparison = None
    if history is not None and state is not None and not is_base:
        comparison = _Comparison(history.files, files.version, whole=history.base is None)
    for batch in _file_actions(store, checkpoint, findings):
        if comparison is not None:
            comparison.take(batch.adds, batch.removes)
    if comparison is None or state is None:
        return None
    path = f"{LOG_DIRECTORY}/{files.name}"
    problems = [*_state_problems(singles, state), *comparison.problems()]
    kind = "checkpoint-differs"
    if not problems and unexpired_from is not None:
        kind = "missing-tombstones"
        problems.extend(comparison.missing_tombstones(unexpired_from))
    for problem in problems:
        findings.add(kind, problem, version=files.version, path=path)
    if not problems:
        return None
    return CheckpointProblem(
        kind=kind, is_refuted=comparison.is_refuted, disputed=comparison.disputed
    )


def _file_actions(
    store: Store, checkpoint: Checkpoint, findings: Findings
) -> Iterator[FileActionBatch]:
    """Yields all file actions of a checkpoint, and compares each sidecar with its tags.

    Later checkpoints rely on these tags when they take over a sidecar without reading it.
    """
    keys = MapKeys(partition_columns=frozenset())
    if not checkpoint.sidecars:
        yield from checkpoint.file_actions(keys=keys, fields=HISTORY_FIELDS)
        return
    total = Tally()
    for sidecar, path in zip(checkpoint.sidecars, checkpoint.sidecar_paths, strict=True):
        check = SidecarCheck(store, path, stated_summary(sidecar))
        for batch in checkpoint.file_actions(keys=keys, fields=HISTORY_FIELDS, only={path}):
            check.take(batch)
            yield batch
        total.add(check.found)
        for kind, problem in check.problems():
            findings.add(kind, problem, version=checkpoint.files.version, path=path)
    tags = checkpoint.singles.checkpoint_metadata[0].tags
    counts = exact_counts(tags)
    if stated_sums(tags) not in (None, total) or counts not in (
        None,
        (total.adds, total.tombstones),
    ):
        findings.add(
            "sidecar-differs",
            "the sums in the tags of the checkpoint differ from those of its sidecars",
            version=checkpoint.files.version,
            path=f"{LOG_DIRECTORY}/{checkpoint.files.name}",
        )


class _Comparison:
    """Compares the file actions of one checkpoint with those in effect at its version."""

    def __init__(self, files: FileHistory, version: int, *, whole: bool) -> None:
        self._files = files
        self._whole = whole
        rows, self._live = files.active_rows(version)
        # Code `ABSENT` leads to the last element, which is no row.
        self._rows = np.append(rows, ABSENT)
        self._seen = np.zeros(len(self._live), np.int64)
        self._removed = np.zeros(len(self._live), bool)
        """The files of which the checkpoint has a tombstone."""
        self._wrong: dict[str, tuple[int, str]] = {}
        """The number of files with each problem, and the first of these files."""
        self.is_refuted = False
        """See `CheckpointProblem`; complete after `problems`."""
        self.disputed: str | None = None

    def take(self, adds: pa.Table, removes: pa.Table) -> None:
        """Compares a batch of the checkpoint."""
        codes = self._files.codes_of(logical_file_keys(adds))
        is_present = codes != ABSENT
        is_present[is_present] = self._live[codes[is_present]]
        self._note("has files that are not live", adds, ~is_present)
        self._judge_extra(adds.filter(booleans(~is_present)), codes[~is_present])
        np.add.at(self._seen, codes[is_present], 1)
        rows = self._rows[codes[is_present]]
        for name in COMPARED_FIELDS:
            theirs, ours = numbers(adds, name)[is_present], self._files.field(name, rows)
            self._note(f"has another {name} for", adds, _spread(is_present, theirs != ours))
            self._refute(rows[theirs != ours])
        marks = cardinalities(adds)[is_present] != self._files.cardinality(rows)
        self._note("has another cardinality for", adds, _spread(is_present, marks))
        self._refute(rows[marks])
        codes = self._files.codes_of(logical_file_keys(removes))
        # A tombstone that the history does not contain may be older than its base.
        wrong = codes == ABSENT if self._whole else np.zeros(len(codes), bool)
        is_present = codes != ABSENT
        wrong[is_present] = self._live[codes[is_present]]
        self._removed[codes[is_present & ~wrong]] = True
        self._note("has tombstones of files that were never removed", removes, wrong)
        rows = self._rows[codes[is_present & wrong]]
        self._refute(rows)
        disputed = wrong & ~self._files.are_committed(self._rows[codes])
        self._dispute("has tombstones of the files", removes, disputed)

    def problems(self) -> Iterator[str]:
        """Yields the problems, one clause each, after all batches."""
        for problem, (count, path) in self._wrong.items():
            yield f"it {problem}: {path}{_and_others(count)}"
        self._refute(self._rows[:-1][self._live & (self._seen == 0)])
        self.is_refuted |= bool((self._seen > 1).any())
        for problem, codes in (
            ("lacks live files", np.flatnonzero(self._live & (self._seen == 0))),
            ("has files twice", np.flatnonzero(self._seen > 1)),
        ):
            if len(codes):
                yield f"it {problem}: {self._files.path(int(codes[0]))}{_and_others(len(codes))}"

    def missing_tombstones(self, unexpired_from: int) -> Iterator[str]:
        """Yields the problem that tombstones with this deletion time or a later one are missing."""
        codes = np.flatnonzero(~self._live & ~self._removed & (self._rows[:-1] != ABSENT))
        times = self._files.field("modificationTime", self._rows[codes])
        codes = codes[times >= unexpired_from]
        if len(codes):
            path = self._files.path(int(codes[0]))
            yield f"it lacks unexpired tombstones: {path}{_and_others(len(codes))}"

    def _refute(self, rows: Ints) -> None:
        self.is_refuted |= bool(self._files.are_committed(rows).any())

    def _judge_extra(self, adds: pa.Table, codes: Ints) -> None:
        """Decides what speaks against files of the checkpoint that are not live."""
        if not len(codes):
            return
        rows = self._rows[codes]
        self._refute(rows)
        # A remove in a commit or in the base speaks against them. So does a larger deletion vector,
        # because vectors only grow.
        live = np.flatnonzero(self._live)
        at = pc.index_in(adds["path"], value_set=self._files.paths(live))
        live_rows = np.append(self._rows[live], ABSENT)[pc.fill_null(at, ABSENT).to_numpy()]
        older = live_rows != ABSENT
        marks = self._files.cardinality(live_rows[older])
        older[older] = marks > cardinalities(adds)[older]
        self._dispute("has the files", adds, (rows == ABSENT) & ~older)

    def _dispute(self, field: str, batch: pa.Table, disputed: npt.NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(disputed)
        if len(rows) and self.disputed is None:
            path = batch["path"][int(rows[0])].as_py()
            self.disputed = f"the newer one {field} {path}{_and_others(len(rows))}"

    def _note(self, problem: str, batch: pa.Table, wrong: npt.NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            count, path = self._wrong.get(problem, (0, batch["path"][int(rows[0])].as_py()))
            self._wrong[problem] = (count + len(rows), path)


def _state_problems(singles: SingleActions, state: StateReplay) -> Iterator[str]:
    if _plain(singles.protocol) != _plain(state.protocol):
        yield "its protocol differs from the log"
    if singles.metadata != state.metadata:
        yield "its metaData differs from the log"
    for app_id, txn in sorted(singles.txns.items()):
        if state.txns.get(app_id) != txn:
            yield f"its transaction of {app_id} differs from the log"
    expiring = state.metadata is not None and _EXPIRY in state.metadata.configuration
    lost = sorted(state.txns.keys() - singles.txns.keys())
    if lost and not expiring:
        yield f"it lacks the transaction of {lost[0]}{_and_others(len(lost))}"
    present = {name: domain.configuration for name, domain in state.present_domains().items()}
    stated = {
        n: domain.configuration for n, domain in singles.domains.items() if not domain.removed
    }
    for name in sorted(present.keys() | stated.keys()):
        if present.get(name) != stated.get(name):
            yield f"its domain {name} differs from the log"


def _plain(protocol: Protocol | None) -> object:
    """Feature lists are compared without order."""
    if protocol is None:
        return None
    return replace(
        protocol,
        reader_features=protocol.reader_features and tuple(sorted(protocol.reader_features)),
        writer_features=protocol.writer_features and tuple(sorted(protocol.writer_features)),
    )


def _spread(is_known: npt.NDArray[np.bool_], wrong: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    rows = np.zeros(len(is_known), bool)
    rows[is_known] = wrong
    return rows


def _and_others(count: int) -> str:
    return f" and {count - 1} others" if count > 1 else ""
