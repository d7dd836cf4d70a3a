"""Keeps the module names of version 0.1 importable, with a `DeprecationWarning`, until 0.3.

The table maps each old name to the new one, both relative to `delta_maintenance`. Packages that
took the name of a former module, such as `delta_maintenance.storage.s3`, forward the module's
names themselves (`forward_names`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGE = "delta_maintenance"
REMOVED_IN = "0.3"

RENAMED: dict[str, str] = {
    "cli.assess": "cli.verbs.assess",
    "cli.files": "cli.verbs.files",
    "cli.health": "cli.verbs.health",
    "cli.history": "cli.verbs.history",
    "cli.inspect": "cli.verbs.inspect",
    "cli.run": "cli.verbs.run",
    "cli.spark_spec": "cli.verbs.spark_spec",
    "operations.clean_log_report": "operations.clean_log.report",
    "operations.commit_series": "operations.health.commit_history",
    "operations.drop_feature_plan": "operations.drop_feature.planning",
    "operations.drop_feature_records": "operations.drop_feature.options",
    "operations.feature_history": "operations.drop_feature.history",
    "operations.feature_preparation": "operations.drop_feature.preparation",
    "operations.file_stripping": "operations.drop_feature.strip_files",
    "operations.fsck_records": "operations.fsck.options",
    "operations.fsck_repairs": "operations.fsck.repairs",
    "operations.health_records": "operations.health.models",
    "operations.outdated_files": "operations.clean_log.expired_files",
    "operations.record": "operations.core.record",
    "operations.report": "operations.core.parquet_report",
    "operations.table_change_records": "operations.table_change.models",
    "operations.vacuum_engine": "operations.vacuum.engine",
    "operations.vacuum_plan": "operations.vacuum.planning",
    "operations.vacuum_records": "operations.vacuum.options",
    "operations.vacuum_report": "operations.vacuum.report",
    "policies.by_hand": "policies.on_demand",
    "policies.carry_out": "policies.execute",
    "policies.document": "policies.definition.reader",
    "policies.hours": "policies.definition.hours",
    "policies.look": "operations.core.evaluation",
    "policies.patterns": "policies.definition.patterns",
    "policies.policy": "policies.definition.policy",
    "policies.records": "policies.models",
    "policies.rules": "policies.definition.rules",
    "policies.values": "operations.core.policy_values",
    "protocol.arrays": "protocol.columns.arrays",
    "protocol.checkpoint": "protocol.delta_log.checkpoint_rows",
    "protocol.client_support": "protocol.changes.client_support",
    "protocol.clustering": "protocol.schema.clustering",
    "protocol.column_mapping": "protocol.schema.column_mapping",
    "protocol.commit_build": "protocol.commit.build",
    "protocol.commit_digest": "protocol.ndjson.digest",
    "protocol.commit_json": "protocol.commit.render",
    "protocol.commit_pieces": "protocol.ndjson.split_stream",
    "protocol.commit_rules": "protocol.commit.rules",
    "protocol.commit_text": "protocol.ndjson.split",
    "protocol.conflicts": "protocol.commit.conflicts",
    "protocol.data_columns": "protocol.schema.data_columns",
    "protocol.deletion_vectors": "protocol.actions.deletion_vectors",
    "protocol.feature_enablement": "protocol.changes.enable",
    "protocol.feature_removal": "protocol.changes.drop",
    "protocol.feature_use": "protocol.changes.usage",
    "protocol.file_action_json": "protocol.ndjson.parse",
    "protocol.file_action_lines": "protocol.ndjson.raw_lines",
    "protocol.file_action_tidying": "protocol.ndjson.lenient",
    "protocol.file_actions": "protocol.actions.file_columns",
    "protocol.file_history": "protocol.delta_log.file_history",
    "protocol.fresh_row_ids": "protocol.row_tracking.assign",
    "protocol.iceberg_compat": "protocol.changes.iceberg_compat",
    "protocol.in_commit_timestamps": "protocol.features.in_commit_timestamps",
    "protocol.key_hash": "protocol.columns.key_hash",
    "protocol.last_checkpoint": "protocol.delta_log.last_checkpoint",
    "protocol.line_heads": "protocol.ndjson.line_prefixes",
    "protocol.log_compaction": "protocol.delta_log.compaction",
    "protocol.log_files": "protocol.delta_log.file_names",
    "protocol.log_retention": "protocol.delta_log.retention",
    "protocol.log_texts": "protocol.ndjson.line_buffers",
    "protocol.metadata_conflicts": "protocol.commit.metadata_conflicts",
    "protocol.partition_values": "protocol.schema.partition_values",
    "protocol.path_audit": "protocol.actions.paths",
    "protocol.properties": "protocol.features.properties",
    "protocol.property_rules": "protocol.changes.property_rules",
    "protocol.protected_paths": "protocol.vacuum.protected_paths",
    "protocol.protocol_downgrade": "protocol.changes.downgrade",
    "protocol.protocol_upgrade": "protocol.changes.upgrade",
    "protocol.reconcile": "protocol.delta_log.replay",
    "protocol.row_id_backfill": "protocol.row_tracking.backfill",
    "protocol.row_tracking_support": "protocol.changes.row_tracking_support",
    "protocol.schema_edit": "protocol.schema.edit",
    "protocol.staged_actions": "protocol.commit.staged",
    "protocol.statistics_json": "protocol.statistics.as_json",
    "protocol.statistics_struct": "protocol.statistics.as_struct",
    "protocol.statistics_values": "protocol.statistics.values",
    "protocol.type_widening": "protocol.schema.type_widening",
    "protocol.vacuum_rules": "protocol.vacuum.visibility",
    "protocol.version_checksum": "protocol.delta_log.version_checksum",
    "storage.azure_client": "storage.azure.client",
    "storage.azure_options": "storage.azure.options",
    "storage.azure_put": "storage.azure.put",
    "storage.base": "storage.core.base",
    "storage.conditional_put": "storage.core.conditional_put",
    "storage.gcs_batch": "storage.gcs.batch",
    "storage.gcs_client": "storage.gcs.client",
    "storage.gcs_options": "storage.gcs.options",
    "storage.gcs_put": "storage.gcs.put",
    "storage.http_session": "storage.core.http_session",
    "storage.local_tree": "storage.local.walk",
    "storage.object_store": "storage.core.object_store",
    "storage.option_values": "storage.core.option_values",
    "storage.paths": "storage.core.paths",
    "storage.ranged_reader": "storage.core.ranged_reader",
    "storage.request_failure": "storage.core.request_failure",
    "storage.s3_client": "storage.s3.client",
    "storage.s3_options": "storage.s3.options",
    "storage.s3_put": "storage.s3.put",
    "storage.sinks": "storage.core.write_streams",
    "storage.streaming_pool": "storage.core.streaming_pool",
    "storage.tree": "storage.core.listing",
    "table.action_file": "table.write.action_file",
    "table.checkpoint_comparison": "operations.fsck.check_checkpoints",
    "table.checkpoint_reader": "table.read.checkpoint_reader",
    "table.checkpoint_spec": "table.write.checkpoint_spec",
    "table.checkpoint_verification": "table.write.verify",
    "table.checkpoint_writer": "table.write.checkpoint_writer",
    "table.checksum_comparison": "operations.fsck.check_checksums",
    "table.checksum_writer": "table.commit.checksum_writer",
    "table.commit_gates": "table.commit.preconditions",
    "table.commit_outcome": "table.commit.outcome",
    "table.compatible_checkpoint": "operations.clean_log.compatible_checkpoint",
    "table.data_deletion": "operations.vacuum.deletion",
    "table.dead_files": "operations.vacuum.candidates",
    "table.earlier_commits": "table.commit.idempotency",
    "table.examination": "operations.fsck.examination",
    "table.feature_traces": "operations.drop_feature.traces",
    "table.file_contents": "operations.fsck.check_contents",
    "table.file_inventory": "operations.vacuum.inventory",
    "table.file_presence": "operations.fsck.check_presence",
    "table.file_references": "operations.vacuum.references",
    "table.file_sums": "table.read.file_sums",
    "table.findings": "operations.fsck.findings",
    "table.footers": "table.data.footers",
    "table.hadoop_checksums": "operations.fsck.check_hadoop_crc",
    "table.history": "table.read.history",
    "table.live_file_soundness": "operations.fsck.check_live_files",
    "table.log_age": "table.read.log_age",
    "table.log_compactor": "table.write.log_compactor",
    "table.log_deletion": "table.write.log_deletion",
    "table.log_follower": "table.commit.follow",
    "table.log_history": "operations.fsck.log_history",
    "table.log_inventory": "table.read.log_inventory",
    "table.log_reader": "table.read.log_reader",
    "table.log_segment": "table.read.segment",
    "table.log_soundness": "operations.fsck.check_log",
    "table.log_watch": "table.read.log_watch",
    "table.mapping_soundness": "operations.fsck.check_column_mapping",
    "table.read_ahead": "table.read.read_ahead",
    "table.removed_files": "operations.vacuum.removed_in_log",
    "table.row_id_backfill": "operations.backfill_row_ids.commits",
    "table.row_id_batches": "operations.backfill_row_ids.batches",
    "table.row_reader": "table.data.row_reader",
    "table.sidecar_writer": "table.write.sidecar_writer",
    "table.snapshot": "table.read.snapshot",
    "table.staging": "table.write.staging",
    "table.standing_files": "table.read.active_files",
    "table.state_soundness": "operations.fsck.check_state",
    "table.table": "table.read.table",
    "table.transaction": "table.commit.transaction",
    "table.vector_tombstones": "operations.drop_feature.vector_tombstones",
    "table.winning_commits": "table.commit.concurrent_commits",
}


def install(package: str = PACKAGE, renamed: Mapping[str, str] = RENAMED) -> None:
    """Lets `import` find the modules of a package by their former names.

    Calling it again for the same package changes nothing.
    """
    finders = (finder for finder in sys.meta_path if isinstance(finder, _RenamedModules))
    if not any(finder.package == package for finder in finders):
        sys.meta_path.append(_RenamedModules(package, renamed))


def forward_names(package: str, module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that took the name of the former module `package`."""

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        _warn(f"{package}.{name}", f"{module}.{name}")
        return value

    return load


class _RenamedModules(MetaPathFinder, Loader):
    def __init__(self, package: str, renamed: Mapping[str, str]) -> None:
        self.package = package
        self._renamed = renamed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != self.package or name not in self._renamed:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        former = module.__name__.removeprefix(f"{self.package}.")
        name = f"{self.package}.{self._renamed[former]}"
        _warn(module.__name__, name)
        # `import` returns this entry, which is the module under its new name.
        sys.modules[module.__name__] = import_module(name)


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"{old} was renamed to {new}; the old name will be removed in {REMOVED_IN}",
        DeprecationWarning,
        stacklevel=3,
    )
