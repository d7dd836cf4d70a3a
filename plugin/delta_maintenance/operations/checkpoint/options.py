"""Options, Plan and Result of `checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.flags import Flag
from delta_maintenance.operations.core.record import AtLeast, Instant, Record

CheckpointKind = Literal["auto", "classic", "v2-classic", "v2-json", "v2-parquet"]
"""`classic` is V1. The others are V2: one file under the classic name, or a UUID-named top-level
file as JSON or Parquet. `auto` follows the table's `delta.checkpointPolicy`."""

Engine = Literal["auto", "local", "spark"]

Incremental = Literal["auto", "never", "always"]
"""Whether sidecars of the checkpoint before are taken over: `auto` where that is possible and
cheaper, `always` wherever it is possible, and refused otherwise, `never`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions(Record):
    """Options of a checkpoint."""

    kind: Annotated[
        CheckpointKind,
        Flag(
            help="classic is V1; the others are V2: one file under the classic name, or a "
            "UUID-named top-level file as JSON or Parquet; auto, the default, follows the table's "
            "delta.checkpointPolicy"
        ),
    ] = "auto"
    actions_per_sidecar: Annotated[
        int,
        AtLeast(0),
        Flag(
            help="of V2 checkpoints: file actions per sidecar at most, by default {default}; 0 "
            "keeps them in the top-level file"
        ),
    ] = 50_000
    """Of V2 checkpoints: file actions per sidecar at most; 0 keeps them in the top-level file.
    Tables of less than some million files get smaller sidecars, so that the removal of one file
    rewrites little."""
    incremental: Annotated[
        Incremental,
        Flag(
            help="of V2 checkpoints: take over the sidecars of the newest checkpoint that hold no "
            "file which a commit since has added or removed. auto, the default, does so if that "
            "writes less; always refuses if it is not possible; never writes all sidecars"
        ),
    ] = "auto"
    """Whether a V2 checkpoint takes over the sidecars of the newest one that hold no file which a
    commit since has added or removed."""
    time_zone: Annotated[
        str | None,
        Flag(
            metavar="Z",
            help="IANA name of the zone in which partition values of type timestamp without a zone "
            "are meant, such as Europe/Paris; only needed where the table sets "
            "delta.checkpoint.writeStatsAsStruct",
        ),
    ] = None
    """IANA name of the zone in which partition values of type timestamp without a zone are meant.
    Only needed for `delta.checkpoint.writeStatsAsStruct`."""
    engine: flags.Engine = "auto"
    auto_spark_bytes: int = 8 << 30
    """With `engine="auto"`: from this many bytes of log on, the work goes to Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan(Record):
    """The planned checkpoint, and its reason."""

    table: str
    version: int
    kind: Literal["classic", "v2-classic", "v2-json", "v2-parquet"] | None
    """None where there is nothing to do."""
    engine: Literal["local", "spark"]
    reason: str
    """One sentence: the reason for the kind and the engine, or why there is nothing to do."""
    log_bytes: int
    """Bytes of the log files that make up the version now."""
    commits_since_checkpoint: int
    actions_per_sidecar: int
    time_zone: str | None
    tombstones_from: Instant | None
    """Tombstones deleted before this instant are expired and left out; None keeps all."""
    transactions_from: Instant | None
    """Transactions last updated at or before this instant are left out; None keeps all."""
    incremental: bool = False
    """Whether sidecars of the newest checkpoint are to be taken over."""
    incremental_option: Incremental = "auto"
    """The option of the same purpose: `apply` decides again if the log has moved on."""
    expected_bytes: int | None = None
    """Bytes that `apply` is expected to write; None if only executors of Spark can tell."""
    expected_full_bytes: int | None = None
    """Bytes that a full checkpoint is expected to have."""
    expected_incremental_bytes: int | None = None
    """Bytes that an incremental one is expected to write; None if it is not possible, or if only
    executors of Spark can tell."""
    notes: tuple[str, ...] = ()
    """Skipped, omitted and preserved contents, with reasons."""

    @property
    def is_noop(self) -> bool:
        """Whether `apply` would write nothing."""
        return self.kind is None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult(Record):
    """The written checkpoint."""

    table: str
    version: int
    status: Literal["written", "already-there", "nothing-to-do"]
    kind: Literal["classic", "v2-classic", "v2-json", "v2-parquet"] | None = None
    engine: Literal["local", "spark"] = "local"
    path: str | None = None
    """The top-level file, relative to the table root."""
    incremental: bool = False
    """Whether sidecars of an earlier checkpoint were taken over."""
    sidecars: int = 0
    """All sidecars of the checkpoint."""
    sidecars_taken_over: int = 0
    bytes_written: int = 0
    """Of the top-level file and of the sidecars that were written for it."""
    actions: int = 0
    """All rows of the checkpoint."""
    num_files: int = 0
    num_tombstones: int = 0
    expired_tombstones: int = 0
    """Expired tombstones that were left out."""
    expired_tombstones_kept: int = 0
    """Expired tombstones in sidecars that were taken over; rewriting the sidecar drops them."""
    hint_updated: bool = False
    """Whether `_last_checkpoint` points here now; it is never moved to an older version."""
    notes: tuple[str, ...] = ()
