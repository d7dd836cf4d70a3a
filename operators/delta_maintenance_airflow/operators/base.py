"""The base class of all operators for Delta tables."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom

from delta_maintenance_airflow.failures import retrying_only_what_may_pass
from delta_maintenance_airflow.hooks.delta import DeltaHook
from delta_maintenance_airflow.lineage import TellsLineage, Told
from delta_maintenance_airflow.outlets import tell_outlets
from delta_maintenance_airflow.progress import LoggedProgress
from delta_maintenance_airflow.template_values import as_flag
from delta_maintenance_airflow.xcom import flat

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_maintenance import Table
    from delta_maintenance.errors import DeltaMaintenanceError


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, and how to carry it out."""

    plan: Any
    apply: Callable[[], Any]
    """Gives the Result."""


class DeltaMaintenanceOperator(TellsLineage, BaseOperator):
    """Runs one operation on one table: plans, logs the plan and its reason, carries it out.

    What a task returns, and pushes to XCom, is a small flat JSON object: `operation`, `status`
    (`planned` with `plan_only`, otherwise that of the Result), and the fields of the Result, or of
    the Plan. Of each list it has the first ten items as text. A task that fails after it has done
    a part pushes that too.

    The event of every asset in `outlets` carries `delta_version`, `operation` and `status`. Errors
    that may pass (the store is down, another writer won) are retried as the task says; all others
    fail it at once.

    :param table_uri: the address of the table: a path, or a URI such as `s3://lake/events`.
        (templated)
    :param options: how to go about it, as fields of the operation's Options. Durations are
        `timedelta` or ISO 8601 (`P30D`). Empty values stand for the defaults. (templated)
    :param plan_only: only say what would be done, and why. (templated)
    :param delta_conn_id: the connection with the storage options of the table; None where the
        worker's environment has all it takes. See `DeltaHook`. (templated)
    """

    operation: ClassVar[str]
    """The verb of the command line."""
    subjects: ClassVar[Sequence[str]] = ()
    """Fields of the Options that are arguments of their own."""
    names_commits: ClassVar[bool] = False
    """Whether the commits carry an id, by which a second process of this very task finds them."""

    asks_for_writers: ClassVar[bool] = False
    """Whether the operation wants to know who else commits, which the connection may say."""

    template_fields: Sequence[str] = ("table_uri", "options", "plan_only", "delta_conn_id")
    template_fields_renderers = {"options": "json"}
    ui_color = "#00add4"

    def __init__(
        self,
        *,
        table_uri: str,
        options: Mapping[str, Any] | None = None,
        plan_only: bool | str = False,
        delta_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # What comes from another task is no mapping before it is rendered.
        twice = set(options).intersection(self.subjects) if isinstance(options, Mapping) else ()
        for name in twice:
            raise ValueError(f"give the argument `{name}`, not an option of this name")
        self.table_uri = table_uri
        self.options = options
        self.plan_only = plan_only
        self.delta_conn_id = delta_conn_id
        self._lineage: Told | None = None

    # Whatever implements these imports the operation within: that loads pyarrow and pydantic,
    # which the parsing of DAGs must not wait for.

    def read_options(self, given: Mapping[str, Any]) -> Any:
        """The Options of the operation."""
        raise NotImplementedError

    def prepare(self, table: Table, options: Any, progress: LoggedProgress) -> Prepared:
        """Plans."""
        raise NotImplementedError

    def summary(self, result: Any) -> str:
        """One line about what was done."""
        raise NotImplementedError

    def reason(self, plan: Any) -> str:
        """One sentence of a plan: why this, or why nothing."""
        return str(plan.reason)

    def facts(self, document: Any) -> Mapping[str, Any]:
        """What XCom has besides the fields of a Plan or a Result."""
        return {}

    def failure(self, document: Any) -> DeltaMaintenanceError | None:
        """The error that a Plan or a Result amounts to, which has what was done all the same."""
        return None

    def wrote(self, result: Any) -> bool:
        """Whether a Result tells of a table that was written to, by this try or another one."""
        return result.status not in ("nothing-to-do", "already-there", "conflict", "violated")

    def lineage(self) -> Told | None:
        begun = Told(table_uri=self.table_uri, written=not as_flag(self.plan_only))
        return self._lineage or begun

    def execute(self, context: Context) -> dict[str, Any]:
        plan_only = as_flag(self.plan_only)
        with retrying_only_what_may_pass():
            options = self.read_options(self._given(context))
            document = self.run(options, plan_only=plan_only)
            outcome = self._told(document, planned=plan_only)
            self._lineage = Told(
                table_uri=self.table_uri,
                written=not plan_only and self.wrote(document),
                facts=outcome,
                results=[] if plan_only else [document.to_json()],
            )
            failure = self.failure(document)
            if failure is not None:
                # Airflow takes what a task returns only where it succeeds.
                context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=outcome)
                raise failure.located(table=document.table, version=document.version)
        if not plan_only:
            extra = {
                "delta_version": document.version,
                "operation": outcome["operation"],
                "status": outcome["status"],
            }
            tell_outlets(self, context, self.table_uri, extra)
        return outcome

    def run(self, options: Any, *, plan_only: bool) -> Any:
        """The Plan, or the Result."""
        prepared = self.planned(options)
        return prepared.plan if plan_only else prepared.apply()

    def planned(self, options: Any) -> Prepared:
        """Opens the table, plans, and logs why."""
        table = self.hook.open_table(self.table_uri)
        prepared = self.prepare(table, options, LoggedProgress(self.log))
        if prepared.plan is not None:
            self.log_reason(prepared.plan)
        return prepared

    def log_reason(self, plan: Any) -> None:
        """Logs why this, or why nothing."""
        self.log.info("%s, version %d: %s", plan.table, plan.version, self.reason(plan))

    @property
    def hook(self) -> DeltaHook:
        """The connection to the store."""
        return DeltaHook(self.delta_conn_id)

    def _given(self, context: Context) -> dict[str, Any]:
        given = {**(self.options or {}), **{name: getattr(self, name) for name in self.subjects}}
        given = {name: value for name, value in given.items() if value not in (None, "")}
        if self.names_commits and "operation_id" not in given:
            given["operation_id"] = self._operation_id(context, given)
            # No try can have begun before the run was due, and none ever changes that.
            given.setdefault("operation_since", context["dag_run"].run_after)
            self.log.info("operation id %s", given["operation_id"])
        # Behind the id, which is that of the task whatever its connection says.
        if self.names_commits or self.asks_for_writers:
            declared = self.hook.other_writers if "other_writers" not in given else None
            given |= {"other_writers": declared} if declared else {}
        return given

    def _operation_id(self, context: Context, given: Mapping[str, Any]) -> str:
        """The same in every try of this task, so that two of them at a time commit once.

        A cleared task is another one, and so is one whose templates give something else.
        """
        ti = context["ti"]
        # Clearing raises max_tries by the tries so far; a retry leaves it alone.
        first_try = ti.max_tries - (self.retries or 0) + 1
        task = [ti.dag_id, ti.run_id, ti.task_id, ti.map_index, first_try]
        asked = json.dumps([*task, self.table_uri, given], sort_keys=True, default=str)
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"airflow:{asked}"))

    def _told(self, document: Any, *, planned: bool) -> dict[str, Any]:
        """Logs what is planned or done, and gives its facts."""
        fields = document.to_json()
        # What the task was given, and what all reports are called by one name.
        for name in ("options", "report"):
            fields.pop(name, None)
        status = "planned" if planned else fields.pop("status")
        head = {"operation": self.operation, "status": status}
        facts = flat({**head, **fields, **self.facts(document)})
        for note in document.notes:
            self.log.info("note: %s", note)
        if planned:
            for name, value in facts.items():
                for line in value if isinstance(value, list) and name != "notes" else ():
                    self.log.info("%s: %s", name, line)
        elif status == "nothing-to-do":
            self.log.info("nothing to do for %s, version %d", document.table, document.version)
        else:
            self.log.info("%s: %s", document.table, self.summary(document))
        return facts
