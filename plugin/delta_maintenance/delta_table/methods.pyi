# Written by tools/method_stubs.py from the records of the operations.
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, overload

from delta_maintenance.delta_table.parts import ExecutionParts
from delta_maintenance.operations.add_constraint import AddConstraintPlan, AddConstraintResult
from delta_maintenance.operations.backfill_row_ids import BackfillRowIdsPlan, BackfillRowIdsResult
from delta_maintenance.operations.checkpoint import CheckpointPlan, CheckpointResult
from delta_maintenance.operations.checksum import ChecksumPlan, ChecksumResult
from delta_maintenance.operations.clean_log import CleanLogPlan, CleanLogResult
from delta_maintenance.operations.clean_staged import CleanStagedPlan, CleanStagedResult
from delta_maintenance.operations.cluster import ClusterPlan, ClusterResult
from delta_maintenance.operations.compact_log import CompactLogPlan, CompactLogResult
from delta_maintenance.operations.core.flags import FlagField
from delta_maintenance.operations.core.registry import AnyOperation
from delta_maintenance.operations.drop_feature import DropFeaturePlan, DropFeatureResult
from delta_maintenance.operations.erasure_report import ErasureReportPlan, ErasureReportResult
from delta_maintenance.operations.expire import ExpirePlan, ExpireResult
from delta_maintenance.operations.fsck import FsckPlan, FsckResult
from delta_maintenance.operations.keep_version import KeepVersionPlan, KeepVersionResult
from delta_maintenance.operations.layout import LayoutPlan, LayoutResult
from delta_maintenance.operations.optimize import OptimizePlan, OptimizeResult
from delta_maintenance.operations.publish import PublishPlan, PublishResult
from delta_maintenance.operations.purge import PurgePlan, PurgeResult
from delta_maintenance.operations.recompute_stats import RecomputeStatsPlan, RecomputeStatsResult
from delta_maintenance.operations.set_clustering import SetClusteringPlan, SetClusteringResult
from delta_maintenance.operations.set_properties import SetPropertiesPlan, SetPropertiesResult
from delta_maintenance.operations.upgrade_protocol import UpgradeProtocolPlan, UpgradeProtocolResult
from delta_maintenance.operations.vacuum import VacuumPlan, VacuumResult

class OperationMethods:
    def _execution_parts(self) -> ExecutionParts: ...
    def __getattr__(self, name: str) -> Any: ...
    @overload
    def fsck(
        self,
        *,
        deep: bool = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        sample: int | None = ...,
        repair: bool = ...,
        remove_missing_files: bool = ...,
        remove_doubled_files: bool = ...,
        allow_append_only: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        forget_overwritten_commits: bool = ...,
        dry_run: Literal[False] = ...,
        report: str | None = ...,
    ) -> FsckResult: ...
    @overload
    def fsck(
        self,
        *,
        deep: bool = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        sample: int | None = ...,
        repair: bool = ...,
        remove_missing_files: bool = ...,
        remove_doubled_files: bool = ...,
        allow_append_only: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        forget_overwritten_commits: bool = ...,
        dry_run: Literal[True],
        report: str | None = ...,
    ) -> FsckPlan: ...
    @overload
    def publish(self, *, dry_run: Literal[False] = ...) -> PublishResult: ...
    @overload
    def publish(self, *, dry_run: Literal[True]) -> PublishPlan: ...
    @overload
    def upgrade_protocol(
        self,
        *,
        features: Sequence[str] = ...,
        reader_version: int | None = ...,
        writer_version: int | None = ...,
        convert_draft: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[False] = ...,
    ) -> UpgradeProtocolResult: ...
    @overload
    def upgrade_protocol(
        self,
        *,
        features: Sequence[str] = ...,
        reader_version: int | None = ...,
        writer_version: int | None = ...,
        convert_draft: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[True],
    ) -> UpgradeProtocolPlan: ...
    @overload
    def set_properties(
        self,
        *,
        properties: Mapping[str, str] = ...,
        remove: Sequence[str] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[False] = ...,
    ) -> SetPropertiesResult: ...
    @overload
    def set_properties(
        self,
        *,
        properties: Mapping[str, str] = ...,
        remove: Sequence[str] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[True],
    ) -> SetPropertiesPlan: ...
    @overload
    def set_clustering(
        self,
        *,
        by: Sequence[str] = ...,
        none: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[False] = ...,
    ) -> SetClusteringResult: ...
    @overload
    def set_clustering(
        self,
        *,
        by: Sequence[str] = ...,
        none: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[True],
    ) -> SetClusteringPlan: ...
    @overload
    def backfill_row_ids(
        self,
        *,
        files_per_commit: int = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        checkpoint: bool = ...,
        convert_draft: bool = ...,
        lift_suspension: bool = ...,
        dry_run: Literal[False] = ...,
    ) -> BackfillRowIdsResult: ...
    @overload
    def backfill_row_ids(
        self,
        *,
        files_per_commit: int = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        checkpoint: bool = ...,
        convert_draft: bool = ...,
        lift_suspension: bool = ...,
        dry_run: Literal[True],
    ) -> BackfillRowIdsPlan: ...
    @overload
    def erasure_report(
        self,
        where: str,
        *,
        clones: Sequence[str] = ...,
        dry_run: Literal[False] = ...,
        report: str | None = ...,
        policy: str | None = ...,
    ) -> ErasureReportResult: ...
    @overload
    def erasure_report(
        self,
        where: str,
        *,
        clones: Sequence[str] = ...,
        dry_run: Literal[True],
        report: str | None = ...,
        policy: str | None = ...,
    ) -> ErasureReportPlan: ...
    @overload
    def keep_version(
        self,
        name: str,
        *,
        keep: int | None = ...,
        at: datetime | str | None = ...,
        until: datetime | str | None = ...,
        why: str | None = ...,
        release: bool = ...,
        dry_run: Literal[False] = ...,
    ) -> KeepVersionResult: ...
    @overload
    def keep_version(
        self,
        name: str,
        *,
        keep: int | None = ...,
        at: datetime | str | None = ...,
        until: datetime | str | None = ...,
        why: str | None = ...,
        release: bool = ...,
        dry_run: Literal[True],
    ) -> KeepVersionPlan: ...
    @overload
    def expire(
        self,
        column: str,
        *,
        older_than: timedelta | str,
        mixed: Literal["leave", "deletion-vectors", "rewrite"] = ...,
        unit: Literal["s", "ms", "us"] | None = ...,
        time_zone: str | None = ...,
        allow_large_delete: bool = ...,
        workers: int | None = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        dry_run: Literal[False] = ...,
        policy: str | None = ...,
    ) -> ExpireResult: ...
    @overload
    def expire(
        self,
        column: str,
        *,
        older_than: timedelta | str,
        mixed: Literal["leave", "deletion-vectors", "rewrite"] = ...,
        unit: Literal["s", "ms", "us"] | None = ...,
        time_zone: str | None = ...,
        allow_large_delete: bool = ...,
        workers: int | None = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        dry_run: Literal[True],
        policy: str | None = ...,
    ) -> ExpirePlan: ...
    @overload
    def layout(
        self,
        *,
        where: Sequence[str] = ...,
        queries: str | None = ...,
        fail_under: int | None = ...,
        columns: Sequence[str] = ...,
        target_bytes: int | str | None = ...,
        dry_run: Literal[False] = ...,
        version: int | None = ...,
    ) -> LayoutResult: ...
    @overload
    def layout(
        self,
        *,
        where: Sequence[str] = ...,
        queries: str | None = ...,
        fail_under: int | None = ...,
        columns: Sequence[str] = ...,
        target_bytes: int | str | None = ...,
        dry_run: Literal[True],
        version: int | None = ...,
    ) -> LayoutPlan: ...
    @overload
    def cluster(
        self,
        *,
        by: Sequence[str] = ...,
        curve: Literal["hilbert", "z-order", "linear"] = ...,
        full: bool = ...,
        where: str | None = ...,
        quiet_for: timedelta | str | None = ...,
        max_bytes: int | str | None = ...,
        max_files: int | None = ...,
        max_duration: timedelta | str | None = ...,
        proof: Literal["rows", "counts"] = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        reader: Literal["spark", "sql-endpoint", "direct-lake"] | None = ...,
        target_bytes: int | str | None = ...,
        row_group_rows: int | None = ...,
        bloom: Sequence[str] = ...,
        dry_run: Literal[False] = ...,
    ) -> ClusterResult: ...
    @overload
    def cluster(
        self,
        *,
        by: Sequence[str] = ...,
        curve: Literal["hilbert", "z-order", "linear"] = ...,
        full: bool = ...,
        where: str | None = ...,
        quiet_for: timedelta | str | None = ...,
        max_bytes: int | str | None = ...,
        max_files: int | None = ...,
        max_duration: timedelta | str | None = ...,
        proof: Literal["rows", "counts"] = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        reader: Literal["spark", "sql-endpoint", "direct-lake"] | None = ...,
        target_bytes: int | str | None = ...,
        row_group_rows: int | None = ...,
        bloom: Sequence[str] = ...,
        dry_run: Literal[True],
    ) -> ClusterPlan: ...
    @overload
    def optimize(
        self,
        *,
        min_files: int = ...,
        deleted_percent: int = ...,
        int96: bool = ...,
        other_codecs: bool = ...,
        full: bool = ...,
        where: str | None = ...,
        quiet_for: timedelta | str | None = ...,
        max_bytes: int | str | None = ...,
        max_files: int | None = ...,
        max_duration: timedelta | str | None = ...,
        proof: Literal["rows", "counts"] = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        reader: Literal["spark", "sql-endpoint", "direct-lake"] | None = ...,
        target_bytes: int | str | None = ...,
        row_group_rows: int | None = ...,
        bloom: Sequence[str] = ...,
        dry_run: Literal[False] = ...,
    ) -> OptimizeResult: ...
    @overload
    def optimize(
        self,
        *,
        min_files: int = ...,
        deleted_percent: int = ...,
        int96: bool = ...,
        other_codecs: bool = ...,
        full: bool = ...,
        where: str | None = ...,
        quiet_for: timedelta | str | None = ...,
        max_bytes: int | str | None = ...,
        max_files: int | None = ...,
        max_duration: timedelta | str | None = ...,
        proof: Literal["rows", "counts"] = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        reader: Literal["spark", "sql-endpoint", "direct-lake"] | None = ...,
        target_bytes: int | str | None = ...,
        row_group_rows: int | None = ...,
        bloom: Sequence[str] = ...,
        dry_run: Literal[True],
    ) -> OptimizePlan: ...
    @overload
    def purge(
        self,
        *,
        above_percent: int = ...,
        dropped_columns: bool = ...,
        where: str | None = ...,
        quiet_for: timedelta | str | None = ...,
        max_bytes: int | str | None = ...,
        max_files: int | None = ...,
        max_duration: timedelta | str | None = ...,
        proof: Literal["rows", "counts"] = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        dry_run: Literal[False] = ...,
        policy: str | None = ...,
    ) -> PurgeResult: ...
    @overload
    def purge(
        self,
        *,
        above_percent: int = ...,
        dropped_columns: bool = ...,
        where: str | None = ...,
        quiet_for: timedelta | str | None = ...,
        max_bytes: int | str | None = ...,
        max_files: int | None = ...,
        max_duration: timedelta | str | None = ...,
        proof: Literal["rows", "counts"] = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        dry_run: Literal[True],
        policy: str | None = ...,
    ) -> PurgePlan: ...
    @overload
    def recompute_stats(
        self,
        *,
        check_writers: bool = ...,
        check_files: bool = ...,
        all_files: bool = ...,
        cluster_by: Sequence[str] = ...,
        files_per_commit: int = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        dry_run: Literal[False] = ...,
        report: str | None = ...,
    ) -> RecomputeStatsResult: ...
    @overload
    def recompute_stats(
        self,
        *,
        check_writers: bool = ...,
        check_files: bool = ...,
        all_files: bool = ...,
        cluster_by: Sequence[str] = ...,
        files_per_commit: int = ...,
        workers: int | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        dry_run: Literal[True],
        report: str | None = ...,
    ) -> RecomputeStatsPlan: ...
    @overload
    def checkpoint(
        self,
        *,
        kind: Literal["auto", "classic", "v2-classic", "v2-json", "v2-parquet"] = ...,
        actions_per_sidecar: int = ...,
        incremental: Literal["auto", "never", "always"] = ...,
        time_zone: str | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        dry_run: Literal[False] = ...,
        version: int | None = ...,
    ) -> CheckpointResult: ...
    @overload
    def checkpoint(
        self,
        *,
        kind: Literal["auto", "classic", "v2-classic", "v2-json", "v2-parquet"] = ...,
        actions_per_sidecar: int = ...,
        incremental: Literal["auto", "never", "always"] = ...,
        time_zone: str | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        dry_run: Literal[True],
        version: int | None = ...,
    ) -> CheckpointPlan: ...
    @overload
    def checksum(
        self, *, checkpoints: bool = ..., dry_run: Literal[False] = ...
    ) -> ChecksumResult: ...
    @overload
    def checksum(self, *, checkpoints: bool = ..., dry_run: Literal[True]) -> ChecksumPlan: ...
    @overload
    def compact_log(
        self,
        *,
        commits_per_file: int = ...,
        first_version: int | None = ...,
        last_version: int | None = ...,
        partial: bool = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        dry_run: Literal[False] = ...,
    ) -> CompactLogResult: ...
    @overload
    def compact_log(
        self,
        *,
        commits_per_file: int = ...,
        first_version: int | None = ...,
        last_version: int | None = ...,
        partial: bool = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        dry_run: Literal[True],
    ) -> CompactLogPlan: ...
    @overload
    def clean_log(
        self,
        *,
        log_retention: timedelta | str | None = ...,
        allow_short_retention: bool = ...,
        no_other_writers: bool = ...,
        streams: Sequence[str] = ...,
        last_read: Sequence[str] = ...,
        dry_run: Literal[False] = ...,
        report: str | None = ...,
        policy: str | None = ...,
    ) -> CleanLogResult: ...
    @overload
    def clean_log(
        self,
        *,
        log_retention: timedelta | str | None = ...,
        allow_short_retention: bool = ...,
        no_other_writers: bool = ...,
        streams: Sequence[str] = ...,
        last_read: Sequence[str] = ...,
        dry_run: Literal[True],
        report: str | None = ...,
        policy: str | None = ...,
    ) -> CleanLogPlan: ...
    @overload
    def clean_staged(self, *, dry_run: Literal[False] = ...) -> CleanStagedResult: ...
    @overload
    def clean_staged(self, *, dry_run: Literal[True]) -> CleanStagedPlan: ...
    @overload
    def vacuum(
        self,
        *,
        mode: Literal["full", "lite", "inventory"] = ...,
        retention: timedelta | str | None = ...,
        allow_short_retention: bool = ...,
        no_other_writers: bool = ...,
        keep_versions: Sequence[int] = ...,
        streams: Sequence[str] = ...,
        last_read: Sequence[str] = ...,
        clones: Sequence[str] = ...,
        inventory: str | None = ...,
        foreign_files: bool = ...,
        archived: Literal["keep", "delete"] = ...,
        allow_large_delete: bool = ...,
        ignore_missing_files: bool = ...,
        log_commits: bool | None = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        dry_run: Literal[False] = ...,
        report: str | None = ...,
        policy: str | None = ...,
    ) -> VacuumResult: ...
    @overload
    def vacuum(
        self,
        *,
        mode: Literal["full", "lite", "inventory"] = ...,
        retention: timedelta | str | None = ...,
        allow_short_retention: bool = ...,
        no_other_writers: bool = ...,
        keep_versions: Sequence[int] = ...,
        streams: Sequence[str] = ...,
        last_read: Sequence[str] = ...,
        clones: Sequence[str] = ...,
        inventory: str | None = ...,
        foreign_files: bool = ...,
        archived: Literal["keep", "delete"] = ...,
        allow_large_delete: bool = ...,
        ignore_missing_files: bool = ...,
        log_commits: bool | None = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        engine: Literal["auto", "local", "spark"] = ...,
        dry_run: Literal[True],
        report: str | None = ...,
        policy: str | None = ...,
    ) -> VacuumPlan: ...
    @overload
    def drop_feature(
        self,
        *,
        feature: str,
        truncate_history: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        files_per_commit: int = ...,
        dry_run: Literal[False] = ...,
        policy: str | None = ...,
    ) -> DropFeatureResult: ...
    @overload
    def drop_feature(
        self,
        *,
        feature: str,
        truncate_history: bool = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        files_per_commit: int = ...,
        dry_run: Literal[True],
        policy: str | None = ...,
    ) -> DropFeaturePlan: ...
    @overload
    def add_constraint(
        self,
        name: str,
        expression: str,
        *,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[False] = ...,
    ) -> AddConstraintResult: ...
    @overload
    def add_constraint(
        self,
        name: str,
        expression: str,
        *,
        engine: Literal["auto", "local", "spark"] = ...,
        other_writers: Literal["conditional_put", "spark", "none"] | None = ...,
        quiet: timedelta | str | None = ...,
        operation_id: str | None = ...,
        operation_since: datetime | str | None = ...,
        dry_run: Literal[True],
    ) -> AddConstraintPlan: ...

def operation_method(record: AnyOperation) -> Callable[..., Any]: ...
def annotation(field: FlagField) -> str: ...
