"""The component: tables from YAML, or from a policy file that can be shared with Airflow."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any

import dagster as dg
from dagster.components.component.state_backed_component import StateBackedComponent
from dagster.components.utils.defs_state import (
    DefsStateConfig,
    DefsStateConfigArgs,
    ResolvedDefsStateConfig,
)
from pydantic import BaseModel, Field, PrivateAttr
from typing_extensions import TypeAliasType

from delta_maintenance.errors import InvalidRequestError, remember_name
from delta_maintenance.policies.definition.catalogs import CatalogRule
from delta_maintenance.policies.definition.policy import (
    Policy,
    PolicyTable,
    TableEntry,
    load_policy,
)
from delta_maintenance.policies.definition.rules import Rules
from delta_maintenance_dagster.commits import CommitSensor
from delta_maintenance_dagster.definitions import (
    Execution,
    build_definitions,
    build_maintenance_schedule,
)
from delta_maintenance_dagster.found_tables import FoundTables, find_tables, known, last_state
from delta_maintenance_dagster.health_checks import HealthThresholds
from delta_maintenance_dagster.new_tables import NewTables
from delta_maintenance_dagster.resources import DeltaStorageResource, Reference
from delta_maintenance_dagster.spark_resource import DeltaSparkResource
from delta_maintenance_dagster.tables import AssetAttributes, DeltaTable, asset_key_of


class DeltaTableEntry(TableEntry):
    """A table or a pattern, as in a policy file, with its names in Dagster."""

    key: str | None = None
    """The asset key, such as `lake/orders`; by default the name, or the address without its scheme.
    For tables, not for patterns.
    """
    declare: bool = True
    """Whether the asset of the table is declared here; false if an asset of this code location
    already has the key.
    """


# Models with a JSON form of their own: through an alias, Dagster leaves them to the resolvers.
_Rules = TypeAliasType("_Rules", Rules)
_Catalogs = TypeAliasType("_Catalogs", Mapping[str, CatalogRule])
_TableEntry = TypeAliasType("_TableEntry", DeltaTableEntry)
_StorageResource = TypeAliasType("_StorageResource", DeltaStorageResource)
_SparkResource = TypeAliasType("_SparkResource", DeltaSparkResource)


class Schedule(dg.Model, dg.Resolvable):
    """The schedule of a job."""

    cron: str
    timezone: str = "UTC"
    running: bool = Field(
        default=False, description="Whether the schedule is on at first; otherwise, turn it on."
    )


def _rules(context: dg.ResolutionContext, rules: Rules) -> Rules:
    return Rules.model_validate(context.resolve_value(rules.model_dump(exclude_unset=True)))


def _catalogs(
    context: dg.ResolutionContext, catalogs: Mapping[str, CatalogRule]
) -> dict[str, CatalogRule]:
    return {
        key: CatalogRule.model_validate(
            context.resolve_value(rule.model_dump(exclude_unset=True)),
            context={"environment": os.environ},
        )
        for key, rule in catalogs.items()
    }


def _entries(
    context: dg.ResolutionContext, entries: Sequence[DeltaTableEntry]
) -> list[DeltaTableEntry]:
    return [
        DeltaTableEntry.model_validate(
            context.resolve_value(entry.model_dump(exclude_unset=True)),
            # Addresses may refer to the environment, as in a policy file.
            context={"environment": os.environ},
        )
        for entry in entries
    ]


def _path(context: dg.ResolutionContext, path: str) -> Path:
    return context.resolve_source_relative_path(str(context.resolve_value(path)))


def _resource(kind: type[dg.ConfigurableResource[Any]], policy_key: str) -> dg.Resolver:
    """Resolves the fields of a resource, or the key of one."""

    def resolve_field(context: dg.ResolutionContext, given: Any) -> Any:
        value = context.resolve_value(given)
        return kind(**value) if isinstance(value, Mapping) else value

    return dg.Resolver(
        resolve_field,
        model_field_type=dict[str, Any] | str,
        description=(
            f"Fields of {kind.__name__}, or the key of a resource of the project. A "
            f"`{policy_key}` of the policy is also such a key."
        ),
    )


class DeltaMaintenanceScaffolder(dg.Scaffolder):
    """Writes `defs.yaml` with one table and the usual policy."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes the YAML file, or Python code if requested."""
        request.target_path.mkdir(parents=True, exist_ok=True)
        if request.scaffold_format == "python":
            (request.target_path / "component.py").write_text(_PYTHON)
        else:
            text = _YAML.replace("TYPE", request.type_name)
            (request.target_path / "defs.yaml").write_text(text)


_YAML = dedent(
    """\
    type: TYPE

    attributes:
      # The rules for all tables. `policy: policy.yaml` reads them from a file instead.
      defaults:
        fsck: {every: 7 days}
        checkpoint: true
        compact_log: true
        clean_log: true
        optimize: true
        vacuum: {every: 7 days}
        # A person agrees to the plan before files are deleted.
        approval: [vacuum]
        limits: {max_deleted_bytes: 1 TiB}
      tables:
        - name: lake/events
          uri: /data/lake/events
      # storage:
      #   options:
      #     AWS_REGION: eu-central-1
      #     AWS_SECRET_ACCESS_KEY: ${env:LAKE_SECRET}
      # execution: {tables_per_step: 50}
      # schedule: {cron: "0 2 * * *", timezone: Europe/Paris}
      # health_schedule: {cron: "0 * * * *"}
    """
)
_PYTHON = dedent(
    '''\
    """Maintains Delta tables."""

    import dagster as dg

    from delta_maintenance.policies.definition.rules import Rules
    from delta_maintenance_dagster import DeltaMaintenanceComponent, DeltaTableEntry


    @dg.component_instance
    def load(context: dg.ComponentLoadContext) -> DeltaMaintenanceComponent:
        return DeltaMaintenanceComponent(
            defaults=Rules(
                fsck=True,
                checkpoint=True,
                compact_log=True,
                clean_log=True,
                optimize=True,
                vacuum=True,
                # A person agrees to the plan before files are deleted.
                approval=("vacuum",),
            ),
            tables=[DeltaTableEntry(name="lake/events", uri="/data/lake/events")],
        )
    '''
)


@cache
def _model_with_clear_errors(model: type[BaseModel]) -> type[BaseModel]:
    class ModelWithClearErrors(model):  # type: ignore[misc, valid-type]
        model_config = {"hide_input_in_errors": True, "title": model.__name__}

        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**_name_unknown_keys(super().model_json_schema(*args, **kwargs))}

    return ModelWithClearErrors


def _name_unknown_keys(node: Any) -> Any:
    """Changes a JSON schema so that `dg check` reports the line of an unknown key, with the valid
    ones. A violated `anyOf` says only that no alternative fits, so it is never violated by values
    with keys or items.
    """
    if isinstance(node, list):
        return [_name_unknown_keys(item) for item in node]
    if not isinstance(node, dict):
        return node
    schema = {key: _name_unknown_keys(value) for key, value in node.items()}
    if schema.get("additionalProperties") is False:
        keys = ", ".join(sorted(schema.get("properties", ())))
        schema["additionalProperties"] = {"const": f"one of the keys {keys}"}
    options = schema.get("anyOf", ())
    containers = [option for option in options if _kind(option) in ("array", "object")]
    if len(options) > len(containers) == 1:
        of_kind = {"type": _kind(containers[0])}
        schema |= {"anyOf": [*options, of_kind], "if": of_kind, "then": containers[0]}
    return schema


def _kind(schema: dict[str, Any]) -> Any:
    return "object" if "$ref" in schema else schema.get("type")


@dg.scaffold_with(DeltaMaintenanceScaffolder)
class DeltaMaintenanceComponent(StateBackedComponent, dg.Model, dg.Resolvable):
    """Maintains Delta tables by the policy of each table: checkpoints, log compaction and clean-up,
    vacuum, row tracking and protocol.

    For each table it makes an external asset, a maintenance asset and health checks; for all tables
    a job, a sensor for commits, and schedules.
    """

    model_config = {"arbitrary_types_allowed": True, "extra": "forbid"}

    policy: Annotated[
        Path | None,
        dg.Resolver(
            _path, model_field_type=str, description="A policy file, relative to this one."
        ),
    ] = None
    defaults: Annotated[
        _Rules,
        dg.Resolver(
            _rules,
            model_field_type=Rules,
            description=("Rules for every table, without a policy file."),
        ),
    ] = Rules()
    tables: Annotated[
        Sequence[_TableEntry],
        dg.Resolver(
            _entries,
            model_field_type=list[DeltaTableEntry],
            description="Tables and patterns, without a file.",
        ),
    ] = ()
    catalogs: Annotated[
        _Catalogs,
        dg.Resolver(
            _catalogs,
            model_field_type=dict[str, CatalogRule],
            description="Catalogs by a key, without a policy file.",
        ),
    ] = Field(default_factory=dict)
    keys_of_names: bool = Field(
        default=False,
        description=(
            "Whether the key of a table in a catalog consists of the parts of its name, such as "
            "`main/sales/orders`; by default it has one part, `main.sales.orders`."
        ),
    )
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="Asset keys of tables of the policy file, by the names of the tables in it.",
    )
    declare_tables: bool = Field(
        default=True,
        description=(
            "Whether the assets of the tables are declared here; false if assets of this code "
            "location already have their keys."
        ),
    )
    name: str = Field(
        default="delta_maintenance",
        description="The name of the job and the group, and a prefix of the other names.",
    )
    storage: Annotated[
        _StorageResource | str, _resource(DeltaStorageResource, "storage.connection")
    ] = Field(default_factory=DeltaStorageResource)
    spark: Annotated[_SparkResource | str, _resource(DeltaSparkResource, "spark.connection")] = (
        Field(default_factory=DeltaSparkResource)
    )
    sensor: CommitSensor = CommitSensor()
    schedule: Schedule | None = Field(default=None, description="Of maintenance.")
    health_schedule: Schedule | None = Field(
        default=None, description="The schedule of the health checks."
    )
    checks: bool = Field(default=True, description="Whether tables have health checks.")
    thresholds: HealthThresholds = HealthThresholds()
    execution: Execution = Field(
        default_factory=Execution, description="How runs over many tables are divided."
    )
    table_attributes: AssetAttributes = Field(
        default_factory=AssetAttributes, description="Of the tables' own assets."
    )
    maintenance_attributes: AssetAttributes = Field(
        default_factory=AssetAttributes, description="Of the assets of their maintenance."
    )
    defs_state: ResolvedDefsStateConfig = DefsStateConfigArgs.local_filesystem()
    _last_state: str | None = PrivateAttr(default=None)
    """The state before a refresh, while it runs."""

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The model of the YAML file, whose errors do not repeat values, which may be secrets."""
        return _model_with_clear_errors(super().model())

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        attributes: dict[str, Any] = {}
        # Not in Dagster 1.12.
        if "produces" in dg.ComponentTypeSpec.__annotations__:
            attributes["produces"] = ["asset", "asset_check", "job", "sensor", "schedule"]
        return dg.ComponentTypeSpec(tags=["delta", "maintenance"], **attributes)

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """The storage for the tables that patterns and catalogs find, between loads."""
        return DefsStateConfig.from_args(
            self.defs_state, default_key=f"DeltaMaintenanceComponent[{self.name}]"
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        # Without patterns and names there is nothing to search, and no state.
        policy = self._policy()
        if not policy.patterns and not any(policy.names.values()):
            return self.build_defs_from_state(context, None)
        return super().build_defs(context)

    async def refresh_state(self, project_root: Path) -> str:
        """Finds the tables anew. If that fails as a whole, the last state stays."""
        self._last_state = await asyncio.to_thread(last_state, self.defs_state_config, project_root)
        try:
            return await super().refresh_state(project_root)
        finally:
            self._last_state = None

    def write_state_to_path(self, state_path: Path) -> None:
        """Finds the tables of patterns and catalogs, once for each refresh and never in a run.

        The tables of a catalog or a pattern that cannot be listed are those of the last refresh.
        """
        storage = Reference(self.storage).here()
        try:
            found_tables = find_tables(
                self._policy(), storage.storage_options, known(self._last_state)
            )
        except Exception:
            if self._last_state is not None:
                state_path.write_text(self._last_state)
            raise
        state_path.write_text(json.dumps(found_tables.to_json()))

    def build_defs_from_state(
        self, context: dg.ComponentLoadContext, state_path: Path | None
    ) -> dg.Definitions:
        """Builds the definitions for the named tables, or for all that were found."""
        policy = self._policy()
        ledger = policy.ledger_table
        found_tables = FoundTables(
            tables=(*policy.named_tables, *(() if ledger is None else (ledger,)))
        )
        if state_path is not None:
            found_tables = FoundTables.from_json(json.loads(state_path.read_text()))
        self._require_known_options(found_tables.tables)
        tables = [
            self._table(table, policy, kept=table.name in found_tables.kept)
            for table in found_tables.tables
        ]
        definitions = build_definitions(
            tables,
            name=self.name,
            storage=self.storage,
            spark=self.spark,
            thresholds=self.thresholds if self.checks else None,
            group_name=self.name,
            execution=self.execution,
            sensor=self.sensor.reporting(
                NewTables(tables, policy, storage=Reference(self.storage))
            ),
        )
        metadata = (
            {"delta/not_listed": "\n".join(found_tables.problems)} if found_tables.problems else {}
        )
        return dg.Definitions.merge(
            definitions, self._schedules(bool(tables)), dg.Definitions(metadata=metadata)
        )

    def _policy(self) -> Policy:
        if self.policy is None:
            return Policy(
                version=1, defaults=self.defaults, catalogs=self.catalogs, tables=tuple(self.tables)
            )
        if self.tables or self.catalogs or self.defaults.model_fields_set:
            raise InvalidRequestError(
                "a component has a policy file or tables of its own, not both",
                remedy="move the tables into the file, or remove the file",
            )
        return load_policy(self.policy)

    def _table(self, table: PolicyTable, policy: Policy, *, kept: bool) -> DeltaTable:
        entry_of_table = next((entry for entry in self.tables if entry.uri == table.uri), None)
        key = (
            entry_of_table.key
            if entry_of_table is not None and entry_of_table.key is not None
            else self.keys.get(table.name)
        )
        if table.catalog_name is not None:
            remember_name(table.uri, table.name)
        return DeltaTable(
            policy=table,
            among=policy,
            kept=kept,
            key=dg.AssetKey.from_user_string(key) if key else self._key_of(table),
            declared=self.declare_tables and (entry_of_table is None or entry_of_table.declare),
            attributes=self.table_attributes,
            maintenance_attributes=self.maintenance_attributes,
        )

    def _key_of(self, table: PolicyTable) -> dg.AssetKey:
        name = table.catalog_name
        if name is not None and self.keys_of_names:
            return dg.AssetKey(name.parts)
        return asset_key_of(table.name)

    def _require_known_options(self, tables: Sequence[PolicyTable]) -> None:
        """Raises `InvalidRequestError` for a storage option that no store has, and for one of a
        table's own options that only other stores have.

        Only names are checked, because a machine that loads definitions need not have the
        credentials. The options of the project's resources are checked when they are used.
        """
        from delta_maintenance.storage.options import options_for, unknown_options

        options = self.storage.options if isinstance(self.storage, DeltaStorageResource) else {}
        entries = {entry.uri: entry for entry in self._policy().tables if entry.uri is not None}
        for table in tables:
            rule = table.rules.storage
            options_of_store = {} if rule.connection is not None else options
            where = f"component {self.name}, table {table.name}"
            for name in unknown_options(table.uri, [*rule.options, *options_of_store]):
                raise InvalidRequestError(
                    f"{where}: {name!r} is not a storage option",
                    remedy="see the options of its store in docs/integrations/stores.md",
                )
            entry = entries.get(table.uri)
            only_here = entry.storage.options if entry is not None else {}
            for name in only_here.keys() - options_for(table.uri, only_here).keys():
                raise InvalidRequestError(
                    f"{where}: {name!r} is an option of another store than {table.uri}",
                    remedy="remove it, or give it in the defaults, where it applies to the tables "
                    "in its store",
                )

    def _schedules(self, tables: bool) -> dg.Definitions:
        health = self.health_schedule if self.checks else None
        jobs = (
            (self.name, self.schedule, "Runs the operations that are due on each Delta table."),
            (f"{self.name}_health", health, "Compares each Delta table with its policy."),
        )
        return dg.Definitions(
            schedules=[
                build_maintenance_schedule(
                    name=f"{job}_schedule",
                    job_name=job,
                    cron_schedule=schedule.cron,
                    timezone=schedule.timezone,
                    running=schedule.running,
                    description=description,
                )
                for job, schedule, description in jobs
                if schedule is not None and tables
            ]
        )
