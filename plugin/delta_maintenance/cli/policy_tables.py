"""Common parts of `assess` and `run`: the policy, the selected tables, and their stored state."""

from __future__ import annotations

import argparse
import getpass
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta_maintenance import clock
from delta_maintenance.cli.arguments import ArgumentParser, Verbs, add_verb
from delta_maintenance.cli.output import warn
from delta_maintenance.errors import DeltaMaintenanceError, InvalidRequestError
from delta_maintenance.policies.promises.for_operation import rule_options_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from delta_maintenance.policies.acknowledgements import Acknowledgement
    from delta_maintenance.policies.assessments import AssessmentEntry
    from delta_maintenance.policies.clones import PolicyClones
    from delta_maintenance.policies.definition.policy import Policy, PolicyTable
    from delta_maintenance.policies.discovery import Discovery
    from delta_maintenance.policies.models import Assessment, LastRun, RunResult
    from delta_maintenance.table.read.table import Table


def add_policy_verb(
    verbs: Verbs,
    name: str,
    *,
    summary: str,
    description: str,
    json_help: str,
    example: str,
    may_omit_policy: bool = False,
) -> ArgumentParser:
    """Adds the parser of a verb that takes a policy instead of a table."""
    parser = add_verb(
        verbs,
        name,
        purpose="policy",
        summary=summary,
        description=description,
        json_help=json_help,
        example=example,
    )
    parser.add_argument(
        "config",
        metavar="CONFIG",
        nargs="?" if may_omit_policy else None,
        help="the policy, a YAML file",
    )
    parser.add_argument(
        "--table",
        dest="names",
        metavar="NAME",
        action="append",
        default=[],
        help="only this table of the policy, by its name or its address; repeatable",
    )
    parser.add_argument(
        "--state",
        metavar="URI",
        help="a folder in any store, used for nothing else, that keeps the assessments and the "
        "last runs between calls; without it, a vacuum or an fsck that made no commit counts as "
        "never run",
    )
    # Errors do not refer to a table on the command line.
    parser.set_defaults(table=None)
    return parser


class PolicyTables:
    """The tables that a command line selects, with their stores and their stored state."""

    def __init__(self, arguments: argparse.Namespace, policy: Policy | None = None) -> None:
        from delta_maintenance.address import is_catalog_name
        from delta_maintenance.policies.assessments import AssessmentStore
        from delta_maintenance.policies.definition.policy import load_policy
        from delta_maintenance.policies.discovery import Discovery
        from delta_maintenance.policies.session import PolicySession

        self._state = AssessmentStore(arguments.state) if arguments.state is not None else None
        policy = load_policy(arguments.config) if policy is None else policy
        self.session = session = PolicySession(
            policy=policy,
            storage_options=rule_options_over(dict(arguments.storage_options)),
            state=self._state.store if self._state is not None else None,
            writes=not getattr(arguments, "dry_run", False),
        )
        self.recorder: Recorder | None = None
        """Of the ledger of the policy; None without one."""
        if (ledger := policy.ledger) is not None:
            from delta_maintenance.ledger.recording import Recorder

            self.recorder = Recorder.at(
                ledger.uri,
                lambda: session.storage_options(ledger.storage, ledger.uri),
                state=session.state,
            )
        self._has_all = False
        self.found = Discovery(policy.named_tables)
        named = {table.name: table for table in policy.named_tables}
        for text in arguments.names:
            if text not in named and is_catalog_name(text):
                # One request, in place of a listing of everything.
                named[text] = session.table_in_catalog(text)
        self.unlisted: tuple[Assessment, ...] = ()
        """The patterns, and the parts of catalogs, that could not be listed, each as a failed
        assessment."""
        if not arguments.names or any(_name_in(named, e) not in named for e in arguments.names):
            self.found = found = session.discover()
            self._has_all = True
            named = {table.name: table for table in found.tables}
            missing = {_name_in(named, text) for text in arguments.names} - named.keys()
            if missing:
                # The table may match a pattern that could not be listed.
                found.complete()
            if not arguments.names:
                self.unlisted = self._failures(found)
        names = [_name_in(named, text) for text in arguments.names]
        unknown = next((name for name in names if name not in named), None)
        if unknown is not None:
            raise InvalidRequestError(
                f"the policy has no table named {unknown!r}",
                file=arguments.config,
                remedy=f"name one of its {len(named)} tables, as `assess` lists them",
            )
        self.tables = [named[name] for name in dict.fromkeys(names) or named]

    def _failures(self, found: Discovery) -> tuple[Assessment, ...]:
        now = clock.now()
        if self._state is not None:
            try:
                return found.keep_failures(self._state, now=now)
            except DeltaMaintenanceError as error:
                warn([f"the failed patterns cannot be stored: {error}"])
        return tuple(failed.assessment(now=now) for failed in found.unlisted)

    def clones(self) -> PolicyClones:
        """Returns the search for clones among all tables of the policy, also unselected ones."""
        return self.session.clones(self.found if self._has_all else None)

    def record(self, result: RunResult) -> None:
        """Records a run in the ledger of the policy, if it has one. Problems are warnings."""
        if self.recorder is None:
            return
        from delta_maintenance.ledger.rows import Origin

        warn(self.recorder.record(result, Origin(done_by="cli", run_id=clock.new_id())))

    def record_choice(self, assessments: Iterable[Assessment], *, chosen: bool = False) -> None:
        """Records the operations that wait because of the budget, and with `chosen` also those that
        would have run.
        """
        if self.recorder is None:
            return
        from delta_maintenance.ledger.rows import Origin, rows_of_choice

        origin = Origin(done_by="cli", run_id=clock.new_id())
        rows = rows_of_choice(assessments, origin, chosen=chosen)
        warn(self.recorder.record_rows(rows, origin))

    @contextmanager
    def open(self, table: PolicyTable) -> Iterator[Table]:
        """Opens the table for the duration of the block. Reads nothing yet."""
        from delta_maintenance.policies.discovery import open_policy_table

        opened = open_policy_table(table, self.session.storage_options)
        try:
            yield opened
        finally:
            opened.store.close()

    def assessments(self) -> list[Assessment]:
        """Assesses the tables, and stores the results; then what could not be listed."""
        from delta_maintenance.policies.lanes import work_side_by_side

        return [*work_side_by_side(self._assess, self.tables), *self.unlisted]

    def _assess(self, table: PolicyTable) -> Assessment:
        from delta_maintenance.errors import failure_of
        from delta_maintenance.policies.assess import assess_table, failed_assessment
        from delta_maintenance.policies.models import with_due_since

        now, entry = clock.now(), None
        try:
            entry = self.entry_of(table.uri, table.name)
            with self.open(table) as opened:
                assessment = assess_table(
                    opened,
                    table,
                    now=now,
                    last_runs=entry.last_runs if entry is not None else (),
                    previous=entry.health if entry is not None else None,
                )
        except Exception as error:
            assessment = failed_assessment(table, failure_of(error, where=table.name), now=now)
        previous = None
        if entry is not None and not entry.is_of_another(assessment):
            previous = entry.assessment
        assessment = with_due_since(assessment, previous)
        if self.session.writes:
            self.keep(assessment)
        return assessment

    def last_runs(self, table: PolicyTable) -> tuple[LastRun, ...]:
        """Returns the stored last runs on a table."""
        entry = self.entry_of(table.uri, table.name)
        return entry.last_runs if entry is not None else ()

    def entry_of(self, uri: str, name: str) -> AssessmentEntry | None:
        """Returns the stored state of a table; None without one."""
        return self._state.entry_of(uri, name) if self._state is not None else None

    def keep(self, assessment: Assessment, result: RunResult | None = None) -> None:
        """Stores the last runs for the next call. A failure does not undo completed work."""
        if self._state is None:
            return
        try:
            self._state.save(assessment, result)
        except DeltaMaintenanceError as error:
            warn([f"{assessment.name}: the outcome cannot be stored: {error}"])

    def acknowledgements(
        self, failures: Iterable[tuple[Assessment | None, RunResult | None]]
    ) -> dict[str, Acknowledgement]:
        """Returns the stored acknowledgements of the failures of tables and of patterns, by name.

        A failure is an assessment, and the run after it, if there was one.
        """
        from delta_maintenance.policies.acknowledgements import current_failure

        acknowledgements = {}
        for assessment, run in failures:
            assert assessment is not None, "a failed run has an assessment"
            failure = current_failure(assessment, run)
            if failure is None or self._state is None:
                continue
            entry = self.entry_of(assessment.uri, assessment.name)
            known = entry.acknowledgement if entry is not None else None
            if known is not None and known.covers(failure, now=clock.now()):
                acknowledgements[assessment.name] = known
        return acknowledgements


def user_name() -> str | None:
    """Returns the user of the operating system; None if it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None


def _name_in(named: Mapping[str, PolicyTable], text: str) -> str:
    """Returns the name of the table that a text names or that is at this address, or the text."""
    if text in named:
        return text
    return next((name for name, table in named.items() if table.answers_to(text)), text)
