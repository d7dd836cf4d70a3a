"""What a table needs: one small model for each operation, and one for each way of going about it.

A key that is left out says nothing, so that another layer of the policy may say it. An operation
that no layer names is not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.policies.definition.hours import Hours
from delta_maintenance.policies.definition.values import (
    Bytes,
    Duration,
    PolicyModel,
    Settings,
    Share,
)
from delta_maintenance.submission.configuration import checked_conf

OperationName = Literal[
    "upgrade-protocol",
    "set-properties",
    "backfill-row-ids",
    "fsck",
    "checkpoint",
    "compact-log",
    "clean-log",
    "vacuum",
]
"""The operations that a policy can ask for, in the order in which they run.

First what changes the table, so that everything after it sees the table as it is to be; then the
look at its soundness, which ends the run of a corrupt table before anything is deleted; then what
writes, and last what deletes: `clean-log` rests on a checkpoint, and `vacuum` on a short log.
"""

OPERATIONS: tuple[OperationName, ...] = get_args(OperationName)
DELETING: tuple[OperationName, ...] = ("clean-log", "vacuum")
"""Those after which something is gone."""

ByHandName = Literal["drop-feature", "add-constraint"]
BY_HAND: tuple[ByHandName, ...] = get_args(ByHandName)
"""Those that only run because somebody asks for them: there is no rule for them, since what they do
is done once, and not kept up."""
AnyOperation = OperationName | ByHandName
MAY_DELETE: tuple[AnyOperation, ...] = (*DELETING, "drop-feature")
"""Those that may delete what is old enough, and take the instant at which it has to have been."""

CHANGING: tuple[AnyOperation, ...] = (
    "upgrade-protocol",
    "set-properties",
    "backfill-row-ids",
    "drop-feature",
    "add-constraint",
)
"""Those by which a table becomes, and stays, what was asked for. All of them commit, and have to be
told who else does."""


class CheckpointRule(PolicyModel):
    """When a checkpoint is due: as soon as one of the limits is reached."""

    max_commits: Annotated[int, Field(ge=1)] | None = 100
    """Commits since the last one."""
    max_bytes: Bytes | None = None
    """Bytes of these commits."""
    max_age: Duration | None = None
    """Age of the oldest of these commits."""
    kind: Literal["auto", "classic", "v2-classic", "v2-json", "v2-parquet"] = "auto"
    """`auto` follows the table's `delta.checkpointPolicy`."""
    actions_per_sidecar: Annotated[int, Field(ge=0)] = 50_000
    """Of V2 checkpoints: file actions per sidecar; 0 keeps them in the top-level file."""
    time_zone: str | None = None
    """Of partition values of type timestamp; only needed for statistics as structs."""


class CompactLogRule(PolicyModel):
    """Log compactions, due as soon as one window is complete and no checkpoint is due."""

    commits_per_file: Annotated[int, Field(ge=2)] = 10
    """Commits that one compaction stands for."""


class CleanLogRule(PolicyModel):
    """When history goes that the retention no longer asks for."""

    retention: Duration | None = None
    """By default the table's `delta.logRetentionDuration`; a shorter one is refused."""
    every: Duration = Field(default="1 day", validate_default=True)
    """At most so often."""


class VacuumRule(PolicyModel):
    """When files go that no retained version needs."""

    every: Duration = Field(default="7 days", validate_default=True)
    """Due when the last one is so long ago, or none is known."""
    min_reclaimable: Bytes | None = None
    """Due earlier, once the log tells of so many bytes that could go."""
    retention: Duration | None = None
    """By default the table's `delta.deletedFileRetentionDuration`, but a week at least; a shorter
    one is refused."""
    mode: Literal["full", "lite"] = "full"
    """`full` lists the table's folder; `lite` takes the log's word for what was removed."""
    log_commits: bool | None = None
    """Whether VACUUM START and VACUUM END are committed; by default everywhere but on S3."""


class FsckRule(PolicyModel):
    """When the table is examined."""

    every: Duration = Field(default="30 days", validate_default=True)
    """Due when the last one is so long ago, or none is known."""
    deep: bool = False
    """Whether every data file's footer and every deletion vector is opened."""


class ProtocolRule(PolicyModel):
    """What the table is to support, and how it is to be configured."""

    features: tuple[str, ...] = ()
    """Table features by the names of the protocol; what they require comes along."""
    properties: Mapping[str, str] = Field(default_factory=dict)
    """Table properties and their values."""


class EngineRule(PolicyModel):
    """Where the work is done."""

    prefer: Literal["auto", "local", "spark"] = "auto"
    """`auto` takes Spark from the sizes below on."""
    spark_log_bytes: Bytes | None = None
    """Bytes of log; by default what each operation thinks right."""
    spark_files: Annotated[int, Field(ge=0)] | None = None
    """Files to be opened; by default what each operation thinks right."""


def _spark_conf(conf: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return checked_conf(conf)
    except InvalidRequestError as error:
        raise ValueError(f"{error.problem}; {error.remedy}") from None


class SparkRule(PolicyModel):
    """How to reach Spark, for whoever submits."""

    connection: str | None = None
    """An orchestrator's connection."""
    master: str | None = None
    """Such as `spark://HOST:7077`, for the command line."""
    conf: Annotated[Mapping[str, str], AfterValidator(_spark_conf)] = Field(default_factory=dict)
    """Spark properties, of those that are let through (`submission.configuration`)."""


class StorageRule(PolicyModel):
    """How to reach the table's store: by reference, never by secret."""

    connection: str | None = None
    """An orchestrator's connection."""
    options: Settings = Field(default_factory=dict)
    """Storage options (docs/stores.md). Secrets as `${env:NAME}`."""


class Limits(PolicyModel):
    """What ends the run of one table before it goes too far."""

    max_deleted_files: Annotated[int, Field(ge=0)] | None = None
    """Files that one operation may delete."""
    max_deleted_bytes: Bytes | None = None
    """Bytes that one operation may delete."""
    max_deleted_share: Share | None = 0.5
    """Of the live files and those to go, once more than 1,000 are to go."""
    max_duration: Duration | None = None
    """After which no further operation begins; one under way is not interrupted."""
    max_commits: Annotated[int, Field(ge=0)] | None = None
    """Commits that one run may add to the table."""


class _Switch:
    """Lets `true` stand for a rule with its defaults, and `false` for none."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "boolean"}]}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler(source)


def _switched(value: object) -> object:
    return {} if value is True else None if value is False else value


def _operations(names: tuple[OperationName, ...]) -> tuple[OperationName, ...]:
    return tuple(name for name in OPERATIONS if name in names)


Operations = Annotated[tuple[OperationName, ...], AfterValidator(_operations)]


class Rules(PolicyModel):
    """What is to be done with a table. Each operation takes its own rule, `true` or `false`."""

    protocol: Annotated[ProtocolRule | None, BeforeValidator(_switched), _Switch()] = None
    """What the table is to support, and its properties."""
    row_tracking: bool | None = None
    """`true` gives row IDs to every file and enables row tracking, `false` disables it."""
    fsck: Annotated[FsckRule | None, BeforeValidator(_switched), _Switch()] = None
    """Examinations of the table."""
    checkpoint: Annotated[CheckpointRule | None, BeforeValidator(_switched), _Switch()] = None
    """Checkpoints."""
    compact_log: Annotated[CompactLogRule | None, BeforeValidator(_switched), _Switch()] = None
    """Log compactions."""
    clean_log: Annotated[CleanLogRule | None, BeforeValidator(_switched), _Switch()] = None
    """Deletion of history."""
    vacuum: Annotated[VacuumRule | None, BeforeValidator(_switched), _Switch()] = None
    """Deletion of data files."""
    engine: EngineRule = EngineRule()
    """Who does the work."""
    spark: SparkRule = SparkRule()
    """How to reach Spark."""
    storage: StorageRule = StorageRule()
    """How to reach the table's store."""
    hours: Hours | None = None
    """When maintenance may run; always, by default."""
    other_writers: Literal["conditional_put", "spark", "none"] | None = None
    """Who else commits to a table on S3, which has to be said before anything is committed there:
    writers that put conditionally, Delta Spark, or nobody."""
    limits: Limits = Limits()
    """What ends a run before it goes too far."""
    approval: Operations = ()
    """Operations that run only once somebody has approved them."""
