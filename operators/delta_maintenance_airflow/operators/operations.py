"""One operator for each operation.

A class names its operation and its arguments, and documents them for authors of Dags. Its behaviour
follows from the record of the operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delta_maintenance_airflow.operators.base import DeltaMaintenanceOperator
from delta_maintenance_airflow.operators.reporting import DeltaReportingOperator
from delta_maintenance_airflow.operators.spark_base import DeltaJobOperator, DeltaSparkOperator


class DeltaCheckpointOperator(DeltaSparkOperator):
    """Writes a checkpoint of a table's newest version, so that readers need not replay its log.

    A checkpoint adds no version and deletes nothing. It is read back and compared before any reader
    can see it. A task that fails or is killed leaves the table unchanged, and running it twice does
    no harm. If the version already has a valid checkpoint, the task reports that and succeeds.

    `status` is `written`, `already-there` or `nothing-to-do`. Takes the parameters of
    `DeltaSparkOperator`. `options` are fields of `CheckpointOptions`: `kind` (`auto`, `classic`,
    `v2-classic`, `v2-json`, `v2-parquet`), `actions_per_sidecar`, `incremental` (`auto`, `never`,
    `always`), `time_zone`, `auto_spark_bytes`.
    """

    operation = "checkpoint"


class DeltaChecksumOperator(DeltaMaintenanceOperator):
    """Writes the version checksum of a table's newest version, and of versions with a checkpoint.

    Other engines read a checksum instead of the log to learn protocol, metadata and totals. A
    checksum adds no version, deletes nothing and never replaces one that exists. Running the task
    twice, or two at a time, does no harm.

    `status` is `written`, `already-there` or `nothing-to-do`. Takes the parameters of
    `DeltaMaintenanceOperator`. `options` are fields of `ChecksumOptions`: `checkpoints`.
    """

    operation = "checksum"


class DeltaLogCompactionOperator(DeltaSparkOperator):
    """Combines the commits after the newest checkpoint into fewer files, which readers read
    instead.

    Adds no version and deletes nothing. Each compaction is read back and compared before any reader
    can see it; running the task twice, or two at a time, does no harm.

    `status` is `written`, `already-there` or `nothing-to-do`. The task fails if an existing
    compaction differs in effect from its commits. Takes the parameters of `DeltaSparkOperator`.
    `options` are fields of `CompactLogOptions`: `commits_per_file`, `first_version`,
    `last_version`, `partial`, `auto_spark_bytes`.
    """

    operation = "compact-log"


class DeltaLogCleanupOperator(DeltaReportingOperator):
    """Deletes the history of a table before the newest checkpoint outside its log retention.

    That checkpoint is read before any file is deleted, and the oldest commits are deleted first, so
    that every remaining version can be opened at any time. No data file is touched. A retention
    shorter than the table's own, or than a day, is refused unless both `allow_short_retention` and
    `no_other_writers` are given.

    `status` is `cleaned` or `nothing-to-do`. A task that could not delete a file fails, with the
    status `partly` in XCom, and may be retried. Takes the parameters of `DeltaReportingOperator`;
    the report lists every file to delete. `options` are fields of `CleanLogOptions`:
    `log_retention`, `allow_short_retention`, `no_other_writers`, `as_of`, `to_the_minute`.
    """

    operation = "clean-log"


class DeltaVacuumOperator(DeltaReportingOperator, DeltaSparkOperator):
    """Deletes data files, deletion vectors and change data files that no retained version refers
    to.

    The log is read again before every few thousand deletions, so that other writers may commit at
    the same time. A retention shorter than the table's own, or than a week, is refused unless both
    `allow_short_retention` and `no_other_writers` are given. Deleting more than 1,000 files that
    are more than half of all files is refused without `allow_large_delete`. If a task is killed,
    the next one continues. With the engine `spark`, a job plans the vacuum: it lists the table,
    finds unreferenced files and deletes them in parallel.

    `status` is `vacuumed` or `nothing-to-do`. A task that could not delete a file fails, with the
    status `partly` in XCom, and may be retried. Takes the parameters of `DeltaReportingOperator`
    and of `DeltaSparkOperator`; the report has each file with size, time and the reason. `options`
    are fields of `VacuumOptions`: `mode` (`full`, `lite`, `inventory`), `retention`,
    `allow_short_retention`, `no_other_writers`, `as_of`, `keep_versions`, `inventory`,
    `foreign_files`, `allow_large_delete`, `ignore_missing_files`, `log_commits`, `other_writers`,
    `auto_spark_bytes`.
    """

    operation = "vacuum"
    template_fields: Sequence[str] = (*DeltaSparkOperator.template_fields, "report_uri")


class DeltaFsckOperator(DeltaReportingOperator, DeltaSparkOperator):
    """Compares commits, checkpoints, compactions, checksums and files of a table with each other.

    Changes nothing unless a repair is requested. A task that finds the table corrupt, and does not
    repair it, fails at once; its findings are in XCom. With the engine `spark`, the job opens the
    files of a `deep` examination.

    `status` is `sound` or `warnings`. `num_corrupt` counts the findings of corruption. Takes the
    parameters of `DeltaReportingOperator` and of `DeltaSparkOperator`; the report has every
    finding. `options` are fields of `FsckOptions`: `deep`, `auto_spark_files`, `repair`,
    `remove_missing_files`, `allow_append_only`, `other_writers`.
    """

    operation = "fsck"
    template_fields: Sequence[str] = (*DeltaSparkOperator.template_fields, "report_uri")


class DeltaOptimizeOperator(DeltaSparkOperator):
    """Merges small data files, and rewrites files with many deleted rows.

    No row changes: new files are read back from storage and compared before each commit. Other
    writers may commit at the same time. The old files stay until a vacuum. With the engine `spark`,
    executors rewrite the files, and the job commits them as they are finished.

    `status` is `rewritten` or `nothing-to-do`. A task fails with the status `conflict` if other
    writers changed the sources of all its work, with `partly` if it ended early, and may then be
    retried; with `failed` it is not retried. Takes the parameters of `DeltaSparkOperator`.
    `options` are fields of `OptimizeOptions`: `where`, `quiet_for`, `target_bytes`, `min_files`,
    `deleted_percent`, `int96`, `other_codecs`, `full`, `max_bytes`, `max_files`, `as_of`,
    `max_duration`, `proof`, `workers`, `auto_spark_bytes`, `other_writers`.
    """

    operation = "optimize"


class DeltaPurgeOperator(DeltaSparkOperator):
    """Rewrites each data file that holds deleted rows, or values of dropped columns, without them.

    No live row changes: new files are read back from storage and compared before each commit.
    Older versions keep the old files until a vacuum deletes them. With the engine `spark`,
    executors rewrite the files, and the job commits them as they are finished.

    `status` is `rewritten` or `nothing-to-do`. A task fails with the status `conflict` if other
    writers changed the sources of all its work, with `partly` if it ended early, and may then be
    retried; with `failed` it is not retried. Takes the parameters of `DeltaSparkOperator`.
    `options` are fields of `PurgeOptions`: `where`, `quiet_for`, `above_percent`,
    `dropped_columns`, `max_bytes`, `max_files`, `as_of`, `max_duration`, `proof`, `workers`,
    `auto_spark_bytes`, `other_writers`.
    """

    operation = "purge"


class DeltaRowTrackingBackfillOperator(DeltaSparkOperator):
    """Assigns row IDs to every file of a table, in batches, and enables row tracking.

    Other writers may commit at the same time. The next task continues an interrupted one, and two
    concurrent tasks do no harm. With the engine `spark`, the job reads the footers of files whose
    statistics do not state their number of rows.

    `status` is `enabled` or `nothing-to-do`. A task that made some commits and could not continue
    fails, with the status `incomplete` in XCom, and may be retried. Takes the parameters of
    `DeltaSparkOperator`. `options` are fields of `BackfillRowIdsOptions`: `files_per_commit`,
    `auto_spark_files`, `other_writers`, `operation_id`, `operation_since`, `checkpoint`,
    `convert_draft`, `lift_suspension`.
    """

    operation = "backfill-row-ids"


class DeltaProtocolUpgradeOperator(DeltaMaintenanceOperator):
    """Adds table features to the protocol of a table in one commit, and keeps implied features.

    Changes only the protocol: an added feature is supported, but not active. The plan lists the
    clients that lose access; look at it with `plan_only` first.

    `status` is `committed`, `already-done` or `nothing-to-do`; a conflict fails the task, and may
    be retried. Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param features: the features that the table should support, by their names in the protocol;
        features that they require are added as well. (templated)

    `options` are fields of `UpgradeProtocolOptions`: `reader_version`, `writer_version`,
    `convert_draft`, `other_writers`, `operation_id`, `operation_since`.
    """

    operation = "upgrade-protocol"
    template_fields: Sequence[str] = (*DeltaMaintenanceOperator.template_fields, "features")

    def __init__(self, *, features: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.features = features


class DeltaTablePropertiesOperator(DeltaMaintenanceOperator):
    """Sets and removes table properties in one commit, with the table features that they need.

    Names and values are checked first. A property that activates a feature also adds the feature;
    other properties never change the protocol.

    `status` is `committed`, `already-done` or `nothing-to-do`; a conflict fails the task, and may
    be retried. Takes the parameters of `DeltaMaintenanceOperator`, and:

    :param properties: the properties to set, with their values as text. (templated)
    :param remove: the properties to remove; a missing one is no error. (templated)

    `options` are fields of `SetPropertiesOptions`: `other_writers`, `operation_id`,
    `operation_since`.
    """

    operation = "set-properties"
    template_fields: Sequence[str] = (
        *DeltaMaintenanceOperator.template_fields,
        "properties",
        "remove",
    )
    template_fields_renderers = {"options": "json", "properties": "json"}

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        remove: Sequence[str] | str = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.properties = properties
        self.remove = remove


class DeltaAddConstraintOperator(DeltaJobOperator):
    """Adds a CHECK constraint, after a Spark job found that every row satisfies it.

    The worker plans, and submits the job if the table lacks the constraint. Rows that others append
    meanwhile are checked too. A row for which the expression is false or null violates it.

    `status` is `committed`, `already-done` or `nothing-to-do`. If rows violate the constraint,
    nothing is committed and the task fails at once, with the status `violated`, their number and
    the files with the most of them in XCom; a `conflict` fails it too, and may be retried. Takes
    the parameters of `DeltaJobOperator`, and:

    :param name: the name of the constraint, regardless of case. (templated)
    :param expression: Spark SQL that must be true for every row, such as `quantity > 0`.
        (templated)

    `options` are fields of `AddConstraintOptions`: `other_writers`, `operation_id`,
    `operation_since`.
    """

    operation = "add-constraint"
    template_fields: Sequence[str] = (*DeltaJobOperator.template_fields, "name", "expression")

    def __init__(self, *, name: str, expression: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.expression = expression


class DeltaDropFeatureOperator(DeltaMaintenanceOperator):
    """Disables a table feature, removes its traces from the table, and drops it.

    Earlier versions that use it are protected from clients that would misread them, or with
    `truncate_history` deleted from the log. That takes a second run once they are old enough: until
    then `status` is `waiting`, and `ready_at` states from when on another run can drop the feature.
    Another run completes an interrupted one.

    `status` is `dropped`, `waiting` or `nothing-to-do`. Takes the parameters of
    `DeltaMaintenanceOperator`, and:

    :param feature: the table feature, by its name in the protocol. (templated)

    `options` are fields of `DropFeatureOptions`: `truncate_history`, `files_per_commit`, `as_of`,
    `other_writers`, `operation_id`, `operation_since`.
    """

    operation = "drop-feature"
    template_fields: Sequence[str] = (*DeltaMaintenanceOperator.template_fields, "feature")

    def __init__(self, *, feature: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.feature = feature
