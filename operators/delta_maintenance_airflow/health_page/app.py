"""The web application of the health page, only for signed-in users of Airflow.

It opens no table but the ledger of the policy, and parses no Dag: everything else that it shows was
stored by the last assessments.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Body, Depends, FastAPI, Request
from fastapi import Query as Parameter
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from delta_maintenance import clock
from delta_maintenance.errors import DeltaMaintenanceError
from delta_maintenance.ledger.table import LedgerTable
from delta_maintenance.operations.core import registry
from delta_maintenance.operations.core.facts import money_text
from delta_maintenance.operations.core.freed import freed_bytes, unfreed_texts
from delta_maintenance.policies.acknowledgements import MOST_REASON
from delta_maintenance.policies.approval import PendingPlan
from delta_maintenance.policies.assessments import AssessmentEntry, AssessmentStore, UnreadableEntry
from delta_maintenance.policies.definition.ledger import LedgerRule
from delta_maintenance.policies.entries import PlannedFiles
from delta_maintenance.policies.leases import Lease, Leases
from delta_maintenance_airflow import __version__, settings
from delta_maintenance_airflow.compat import AirflowException
from delta_maintenance_airflow.dags.manual import MANUAL_TAG, SHORT_TAG
from delta_maintenance_airflow.health_page import anomalies, approvals, formats, listing, rows
from delta_maintenance_airflow.health_page.acknowledge import (
    ENDS,
    SCHEDULED_DAG,
    add_acknowledgement,
)
from delta_maintenance_airflow.health_page.approvals import Question
from delta_maintenance_airflow.health_page.charts import charts
from delta_maintenance_airflow.health_page.export import ExportedRows, ExportForm, exported_tables
from delta_maintenance_airflow.health_page.history import KeptHistory, history_of
from delta_maintenance_airflow.health_page.history_page import add_history
from delta_maintenance_airflow.health_page.known_tables import KnownTables, PolicyFile
from delta_maintenance_airflow.health_page.metrics import add_metrics
from delta_maintenance_airflow.health_page.option_fields import (
    CheckedOptions,
    option_fields,
    policy_values,
    read_answer,
)
from delta_maintenance_airflow.health_page.overview import RECENT, SHOWN, overview_of
from delta_maintenance_airflow.ledger import open_ledger
from delta_maintenance_airflow.tasks import link_to_holder

OpenQuestions = Callable[[frozenset[Question]], frozenset[Question]]
_FOLDER = Path(__file__).parent
_PATH = re.compile(r"/[A-Za-z0-9\-._~%!$&'()*+,;=:@/]+")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)


def configured_app() -> FastAPI:
    """The application with the settings of Airflow's configuration."""
    return create_app(
        settings.assessment_store,
        PolicyFile(settings.policy_path()),
        open_questions=approvals.open_questions,
        separate_approver=settings.separate_approver(),
        metrics_token=settings.metrics_token if settings.has_metrics() else None,
    )


def create_app(
    open_store: Callable[[], AssessmentStore],
    policy: PolicyFile,
    *,
    open_questions: OpenQuestions,
    separate_approver: bool = False,
    metrics_token: Callable[[], str | None] | None = None,
    now: Callable[[], datetime] = clock.now,
    ledger: Callable[[LedgerRule], LedgerTable] = open_ledger,
) -> FastAPI:
    """The application on one folder of assessments, which is opened on the first request.

    `open_questions` returns those of the given questions that wait for an answer. `metrics_token`
    returns the token for metrics, if there is one; without the function, there are no metrics.
    """
    app = FastAPI(title="Delta tables", openapi_url=None, docs_url=None, redoc_url=None)
    # Static files contain no data: the page that asks users to sign in needs them too.
    app.mount("/static", StaticFiles(directory=_FOLDER / "static"), name="static")
    app.middleware("http")(_with_headers)
    history = KeptHistory(policy, ledger, now=now)
    pages = Pages(open_store, policy, now, open_questions, separate_approver, history)
    signed_in = [Depends(requires_access_view(AccessView.PLUGINS))]
    for path, page in (
        ("/", pages.tables),
        ("/table", pages.table),
        ("/run", pages.run),
        ("/approvals", pages.approvals),
        ("/approvals/files", pages.planned_files),
    ):
        app.add_api_route(
            path, page, methods=["GET"], response_class=HTMLResponse, dependencies=signed_in
        )
    app.add_api_route(
        "/approvals/files.{form}", pages.exported_files, methods=["GET"], dependencies=signed_in
    )
    app.add_api_route(
        "/export.{form}", pages.exported_list, methods=["GET"], dependencies=signed_in
    )
    add_acknowledgement(app, pages.ask_store, now=now)
    add_history(app, pages.everything, pages.render_page, history)
    if metrics_token is not None:
        add_metrics(app, pages.everything, token=metrics_token)
    # Not a GET, because conditions may contain personal data, and servers log addresses.
    app.add_api_route("/options", checked_options, methods=["POST"], dependencies=signed_in)
    app.add_exception_handler(HTTPException, pages.problem)
    return app


def _query(
    q: str = "",
    status: str = "",
    operation: str = "",
    sort: str = "status",
    order: str = "asc",
    left: bool = False,
    columns: str = "",
    page: Annotated[int, Parameter(ge=1)] = 1,
) -> listing.TableQuery:
    return listing.TableQuery(
        text=q,
        status=status,
        operation=operation,
        left=left,
        sort=sort if sort in listing.COLUMNS else "status",
        descending=order == "desc",
        further=columns == "all" or sort in listing.FURTHER,
        page=page,
    )


def _query_with_trouble(
    query: Annotated[listing.TableQuery, Depends(_query)], anomaly: str = "", cause: str = ""
) -> listing.TableQuery:
    return replace(query, anomaly=anomaly, cause=cause)


def checked_options(
    operation: Annotated[str, Body()],
    options: Annotated[dict[str, Any], Body()],
    short_retention: Annotated[bool, Body()] = False,
) -> CheckedOptions:
    """The options in a filled form, or its problems. Changes nothing."""
    record = registry.known(operation)
    if record is None:
        return CheckedOptions(problems={"": f"the operation {operation[:80]!r} is not installed"})
    return read_answer(record, options, short_retention=short_retention)


class Pages:
    """The pages. Plain functions: Airflow runs them outside of its event loop."""

    def __init__(
        self,
        open_store: Callable[[], AssessmentStore],
        policy: PolicyFile,
        now: Callable[[], datetime],
        open_questions: OpenQuestions,
        separate_approver: bool,
        history: KeptHistory,
    ) -> None:
        self._open_store = open_store
        self._store: AssessmentStore | None = None
        self._policy = policy
        self._now = now
        self._open_questions = open_questions
        self._separate_approver = separate_approver
        self._kept = history
        self._templates = _environment()

    def tables(
        self, request: Request, query: Annotated[listing.TableQuery, Depends(_query_with_trouble)]
    ) -> Response:
        """The overview, and all tables, filtered and sorted."""
        policy_tables = self._policy.tables()
        everything = self._everything(policy_tables)
        return self.render_page(
            request,
            "tables.html",
            page=listing.select(everything, query),
            overview=overview_of(everything, now=self._now()),
            shown=SHOWN,
            query=query,
            known=policy_tables,
            store=self._uri,
        )

    def exported_list(
        self, form: ExportForm, query: Annotated[listing.TableQuery, Depends(_query_with_trouble)]
    ) -> Response:
        """The list of tables as a file: all that match, not only those of one page."""
        matching = listing.matching_rows(self.everything(), query)
        return exported_tables(matching).response("tables", form)

    def table(self, request: Request, name: str) -> Response:
        """One table with its log over time."""
        row = self._row(name)
        drawn = charts(row.health) if row.health is not None else None
        look = self._kept.look()
        return self.render_page(
            request,
            "table.html",
            row=row,
            killed=self.ask_store(partial(_abandoned_lease, row=row, now=self._now)),
            charts=drawn,
            has_charts=drawn is not None,
            look=look,
            recorded=history_of(row, look),
        )

    def run(self, request: Request, name: str, operation: str = "") -> Response:
        """The form that starts a manual Dag for one table, with the fields of an operation."""
        row = self._row(name)
        record = registry.known(operation) if operation else None
        by_policy = (
            policy_values(record, self._policy.tables().policy, row.assessment) if record else {}
        )
        return self.render_page(
            request,
            "run.html",
            row=row,
            record=record,
            records=registry.operations(),
            calm=record is not None and not record.must_set and record.only_reads(record.options()),
            fields=option_fields(record, by_policy) if record is not None else (),
            tags={"manual": MANUAL_TAG, "short": SHORT_TAG},
        )

    def approvals(self, request: Request, user: GetUserDep) -> Response:
        """The plans that wait for an approval, to answer several at once."""
        everything = self.everything()
        return self.render_page(
            request,
            "approvals.html",
            groups=approvals.group_plans([plan for row in everything for plan in row.plans]),
            # Airflow checks the permission; this person would be refused after the answer.
            refused={user.get_id(), user.get_name()} if self._separate_approver else set(),
            scheduled=SCHEDULED_DAG,
            shown=SHOWN,
            large_share=approvals.LARGE_SHARE,
            tomorrow=self._now() + timedelta(days=1),
        )

    def planned_files(self, request: Request, name: str, plan: str) -> Response:
        """The files of a plan that waits for an approval."""
        waiting, files = self._files_of(name, plan)
        return self.render_page(
            request, "files.html", plan=waiting, files=files, most=approvals.MOST_FILES
        )

    def exported_files(self, form: ExportForm, name: str, plan: str) -> Response:
        """The same as a file, with all that are stored."""
        waiting, files = self._files_of(name, plan)
        exported = ExportedRows(columns=approvals.FILE_COLUMNS, rows=approvals.file_cells(files))
        return exported.response(f"{waiting.operation}-{plan}", form)

    def _files_of(self, name: str, plan_id: str) -> tuple[PendingPlan, PlannedFiles]:
        plans = [waiting.plan for waiting in self._row(name).plans]
        plan = next((plan for plan in plans if plan.id == plan_id), None)
        files = None if plan is None else self.ask_store(partial(_load_files, plan=plan))
        if plan is None or files is None:
            raise HTTPException(404, "No such plan waits, or its files are not stored.")
        return plan, files

    def everything(self) -> tuple[rows.TableRow, ...]:
        """The rows of all tables."""
        return self._everything(self._policy.tables())

    def _everything(self, policy_tables: KnownTables) -> tuple[rows.TableRow, ...]:
        entries = self.ask_store(AssessmentStore.load_all)
        return rows.build_rows(entries, policy_tables, plans_of=self._plans_of(entries))

    def _plans_of(self, entries: Sequence[AssessmentEntry | UnreadableEntry]) -> rows.PlansOf:
        still_open = self._open_questions(approvals.questions_about(entries))
        return partial(approvals.waiting_plans, now=self._now(), still_open=still_open)

    def problem(self, request: Request, error: Exception) -> Response:
        """An error page."""
        assert isinstance(error, HTTPException)
        return self.render_page(
            request, "problem.html", code=error.status_code, detail=str(error.detail)
        )

    def _row(self, name: str) -> rows.TableRow:
        policy_tables = self._policy.tables()
        entry = self.ask_store(partial(_load, name=name, uri=policy_tables.address_of(name)))
        if isinstance(entry, AssessmentEntry):
            return rows.row_of(entry, policy_tables, plans_of=self._plans_of([entry]))
        if entry is not None:
            return rows.TableRow(name=name, uri=None, status="unreadable", problem=entry.problem)
        table = next((table for table in policy_tables.tables if table.name == name), None)
        if table is None:
            raise HTTPException(404, "No table of this name is known.")
        return rows.never_assessed(table)

    def ask_store(self, question: Callable[[AssessmentStore], Any]) -> Any:
        """Returns the answer of the store. If the store is unavailable, the page reports that."""
        try:
            if self._store is None:
                self._store = self._open_store()
            return question(self._store)
        except (DeltaMaintenanceError, AirflowException) as error:
            # Opened again for the next request, because credentials expire and connections are
            # corrected.
            self._store = None
            raise HTTPException(503, f"The assessments cannot be read: {error}") from error

    @property
    def _uri(self) -> str:
        return self._store.uri if self._store is not None else ""

    def render_page(
        self, request: Request, template: str, *, code: int = 200, **values: Any
    ) -> Response:
        """A page from a template."""
        mounted_at = request.scope.get("root_path", "")
        text = self._templates.get_template(template).render(
            base=mounted_at,
            airflow=request.scope.get("app_root_path", ""),
            docs=settings.documentation(),
            now=self._now(),
            code=code,
            **values,
        )
        return HTMLResponse(text, status_code=code)


def _load(store: AssessmentStore, *, name: str, uri: str | None) -> Any:
    """The entry of a table by its name, or by its address in any form."""
    for at in (uri, name):
        entry = store.load(at, name=name) if at else None
        if entry is not None:
            return entry
    return store.find_by_name(name)


def _load_files(store: AssessmentStore, *, plan: PendingPlan) -> PlannedFiles | None:
    return store.files_of(plan)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("delta_maintenance_airflow.health_page"),
        # Names and addresses are untrusted input.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count,
        size=formats.size,
        percent=formats.percent,
        span=formats.span,
        seconds=formats.seconds,
        brief=formats.brief,
        ago=formats.ago,
        instant=clock.minute_text,
        money=money_text,
        day=formats.day,
        holder=formats.holder,
        short_holder=formats.short_holder,
        purpose=formats.purpose,
        query=lambda values: urlencode({k: v for k, v in values.items() if v not in ("", None)}),
        freed_bytes=freed_bytes,
        unfreed=partial(unfreed_texts, size_of=formats.size),
        within=_within,
        task_of_holder=link_to_holder,
        status_name=formats.status_name,
        breakable=_breakable,
        file_cells=lambda files, most: islice(approvals.file_cells(files), most),
        on_page=formats.prose,
        done_by=formats.done_by,
        fact_title=formats.fact_title,
    )
    records = registry.policy_operations()
    environment.globals.update(
        release=__version__,
        statuses=rows.STATUSES,
        tiers=anomalies.TIERS,
        anomaly_names={anomaly.key: anomaly.title for anomaly in anomalies.ANOMALIES},
        ends=ENDS,
        most_reason=MOST_REASON,
        scheduled_dag=SCHEDULED_DAG,
        operations=[record.name for record in records],
        orders=listing.ORDERS,
        further=listing.FURTHER,
        few_small_files=anomalies.SMALL_FILES,
        recent=RECENT,
        # Spans are rounded down.
        minute=timedelta(seconds=59),
    )
    return environment


def _breakable(name: str) -> Markup:
    """A name that breaks after slashes and underscores, where it is too long for its place."""
    return Markup(re.sub("(/(?!/)|_)", r"\1<wbr>", str(escape(name))))


def _abandoned_lease(
    store: AssessmentStore, *, row: rows.TableRow, now: Callable[[], datetime]
) -> Lease | None:
    if row.uri is None:
        return None
    reported_at = row.run.ended_at if row.run is not None else None
    try:
        return Leases(store.store, now=now).abandoned(row.uri, reported_at=reported_at)
    except DeltaMaintenanceError:
        # An address that no task can have, or a damaged lease: the page has the rest.
        return None


def _within(link: str | None) -> str | None:
    """Returns a link that stays within Airflow; None for any other.

    Browsers remove tabs and line breaks from addresses, take backslashes for slashes, and resolve
    encoded dots. Only characters and segments without such a meaning are therefore allowed.
    """
    if link is None or not _PATH.fullmatch(link):
        return None
    leaves = any(unquote(segment) in ("", ".", "..") for segment in link.split("/")[1:])
    return None if leaves else link


async def _with_headers(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    # Read before the call: the router changes the root path when it passes the request on.
    static = request.url.path.startswith(f"{request.scope.get('root_path', '')}/static/")
    response = await call_next(request)
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    if not static:
        response.headers["Cache-Control"] = "no-store"
    return response
