"""Contents of the health page."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance.errors import StorageError
from delta_maintenance.operations.core import Freed
from delta_maintenance.operations.layout import (
    ColumnLayout,
    Depths,
    KeyProposal,
    LayoutResult,
    Reading,
)
from delta_maintenance.policies import AssessmentStore, OperationOutcome
from delta_maintenance.policies.assess import assess
from tests.support.orchestrators.health_site import POLICY, Elements, Site, words
from tests.support.tables.actions import add, metadata, protocol
from tests.support.tables.assessed_tables import NOW, assessment, health, held, run_result, waiting
from tests.support.tables.policy_tables import asked
from tests.support.tables.table_builder import TableBuilder

# Of Airflow's own imports, which come with the first of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")


def test_an_empty_page_shows_instructions(site: Site) -> None:
    site.policy.write_text("version: 1\n")
    text = site.get("/").text
    assert "No table was assessed yet" in text
    assert "delta_maintenance" in text
    assert site.store.uri in text


def test_a_table_without_assessment_is_shown_as_such(site: Site) -> None:
    site.store.save(assessment())
    text = site.get("/").text
    assert "No run has assessed it yet" in text
    assert "never assessed" in text
    page = site.get("/table?name=never")
    assert page.status_code == 200
    assert "no run has assessed it yet" in page.text
    assert site.get("/run?name=never").status_code == 200


def test_a_table_that_left_the_policy_is_marked(site: Site) -> None:
    site.store.save(assessment("left", uri="s3://elsewhere/left"))
    site.store.save(assessment("found", uri="s3://lake/bronze/found"))
    text = site.get("/").text
    assert "found" in text and "name=left" not in text, "it leaves the list"
    assert "left the policy" in text
    kept = site.get("/?left=1").text
    assert kept.count("not in the policy") == 1 and "name=left" in kept
    assert "name=found" not in kept
    assert site.get("/table?name=left").status_code == 200
    site.policy.unlink()
    text = site.get("/").text
    assert "not in the policy" not in text and "name=left" in text


def test_owner_and_tags_come_from_the_policy(site: Site) -> None:
    site.store.save(assessment())
    site.store.save(assessment("found", uri="s3://lake/bronze/found"))
    text = site.get("/").text
    for tag in ("sales", "gold", "platform"):
        assert f'<span class="tag">{tag}</span>' in text


def test_a_changed_policy_is_read_again(site: Site) -> None:
    site.get("/")
    site.policy.write_text(POLICY.replace("name: never", "name: brand-new"))
    assert "brand-new" in site.get("/").text


@pytest.mark.parametrize("content", ["version: 2\n", "tables: [", None])
def test_an_unreadable_policy_hides_no_assessed_table(site: Site, content: str | None) -> None:
    site.store.save(assessment())
    site.policy.unlink()
    if content is not None:
        site.policy.write_text(content)
    response = site.get("/")
    assert response.status_code == 200
    assert "orders" in response.text
    assert "The policy cannot be read here" in response.text


def test_a_damaged_entry_is_shown_with_its_problem(site: Site) -> None:
    site.store.save(assessment())
    (file,) = Path(site.store.uri).iterdir()
    file.write_text("no JSON")
    text = site.get("/").text
    assert "unreadable" in text
    assert "it is not JSON; delete it" in text
    page = site.get("/table?name=orders")
    assert page.status_code == 200
    assert "it is not JSON What to do delete it, or let the next assessment" in words(page.text)


def test_an_unavailable_store_gives_an_error_page_and_recovers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.store.save(assessment())

    def down(store: AssessmentStore) -> Any:
        raise StorageError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(AssessmentStore, "load_all", down)
        response = site.get("/")
        assert response.status_code == 503
        assert "the store does not answer" in response.text
    assert site.get("/").status_code == 200


def test_a_folder_that_cannot_be_opened_is_opened_again_at_the_next_visit(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delta_maintenance_airflow import settings
    from delta_maintenance_airflow.health_page.app import configured_app

    site.page._app = configured_app()
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", "s3://lake/assessments")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS_CONN_ID", "no_such_connection")
    response = site.get("/")
    assert response.status_code == 503
    assert "no_such_connection" in response.text
    monkeypatch.delenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS_CONN_ID")
    monkeypatch.setenv("AIRFLOW__DELTA_MAINTENANCE__ASSESSMENTS", site.store.uri)
    settings.assessment_store().save(assessment("put-right"))
    assert "put-right" in site.get("/").text


def test_a_table_that_failed_shows_why_and_what_was_known(site: Site) -> None:
    site.store.save(assessment())
    site.store.save(
        assessment(status="failed", problem="version 212 is missing", health=None, operations=())
    )
    assert "version 212 is missing" in site.get("/").text
    text = site.get("/table?name=orders").text
    assert "version 212 is missing" in text
    assert "What follows is from the last good assessment" in text
    assert f"{health().version:,}" in text


@pytest.mark.parametrize("told", ["{name}", "{uri} ({name})"])
def test_the_name_of_a_table_in_a_catalog_does_not_hide_its_problem(site: Site, told: str) -> None:
    site.policy.write_text(
        "version: 1\ncatalogs:\n  uc: {kind: uc, uri: https://catalog.example}\n"
        "tables:\n  - {catalog: uc.prod.sales.*}\n"
    )
    name, uri = f"uc://prod.sales.{'x' * 255}", "s3://lake/sales/x"
    problem = f"table {told.format(name=name, uri=uri)}: Unity Catalog denies credentials"
    failed = assessment(name, uri=uri, status="failed", problem=problem, health=None, operations=())
    site.store.save(failed)
    assert ">Unity Catalog denies credentials</span>" in site.get("/").text
    assert "fails (3 min): Unity Catalog denies" in words(site.get("/").text)


def test_the_first_screen_reports_no_problem(site: Site) -> None:
    calm = tuple(replace(each, status="not-due") for each in assessment().operations)
    well = assessment(status="nothing-due", operations=calm)
    for name in ("orders", "never"):
        one = replace(well, name=name, uri=f"s3://lake/sales/{name}")
        many = health(bytes_to_open=5 << 20, files_to_open=1_000, num_files=40)
        before = replace(one, health=many)
        few = health(bytes_to_open=1 << 20, files_to_open=2, num_files=30)
        after = replace(one, health=few)
        done, never = run_result().outcomes[0], "versions are kept, and no rule deletes them"
        outcomes = (
            replace(done, freed=Freed(deleted_bytes=3 << 30, state="freed", why="")),
            replace(done, freed=Freed(deleted_bytes=2 << 30, state="never", why=never)),
        )
        run = run_result(
            outcomes=outcomes, before=before, after=after, started_at=NOW - timedelta(days=1)
        )
        site.store.save(after, run)
        site.store.save(after, replace(run, started_at=NOW - timedelta(days=8)))
    text = words(site.get("/").text)
    assert "Nothing to do No table failed, and nothing waits for an approval." in text
    assert (
        "Runs in 7 days 2 Data files merged away 20 Log that readers no longer open 8 MiB "
        "1,996 files Reclaimed 6 GiB 4 GiB deleted, not freed"
    ) in text
    page = words(site.get("/table?name=orders").text)
    assert "1,000 → 2 files of the log for a reader" in page
    assert "40 → 30 data files" in page and "3 GiB reclaimed" in page
    told = "2 GiB deleted, which frees nothing: versions are kept, and no rule deletes them"
    assert page.count(told) == 1
    history = page[page.index("History") :]
    assert history.count("40 → 30 5 MiB → 1 MiB 3 GiB 2 GiB deleted, not freed") == 2


def test_the_first_screen_lists_problems_by_urgency(site: Site) -> None:
    site.store.save(*waiting("never"))
    gone = assessment("orders", status="failed", problem="it is gone", health=None, operations=())
    site.store.save(gone, link="/dags/d/runs/first")
    site.store.save(replace(gone, assessed_at=NOW), link="/dags/d/runs/r/tasks/assess/mapped/3")
    pattern = replace(gone, name="s3://lake/bronze/**", uri="s3://lake/bronze/**")
    site.store.save(replace(pattern, subject="pattern", problem="the store turns us away"))
    page = site.get("/").text
    text = words(page)
    assert "To do: answer 1 plan, and repair 1 table" in text
    assert "s3://lake/bronze/** cannot be listed, since" in text
    assert "the store turns us away" in text
    assert "orders fails (3 min): it is gone" in text
    assert "1 plan waits for you: vacuum of never (12 files, 3 GiB)" in text
    assert "vacuum: waits for you" in text
    rows = page[page.index("<tbody>") :]
    assert rows.index("s3://<wbr>lake/<wbr>bronze/<wbr>**</a>") < rows.index('name=orders"')
    assert '/dags/d/runs/r/tasks/assess/mapped/3" data-leave>task' in page
    assert "operation=fsck" in page
    one = site.get("/table?name=orders").text
    assert '/dags/d/runs/r/tasks/assess/mapped/3" data-leave>the task that failed' in one
    assert "operation=fsck" in page and "the task that failed" in one


def test_a_pattern_that_left_the_policy_is_not_a_problem(site: Site) -> None:
    pattern = assessment(
        "s3://other/**", status="failed", problem="gone", health=None, operations=()
    )
    site.store.save(replace(pattern, subject="pattern"))
    site.store.save(assessment())
    assert "s3://other" not in words(site.get("/").text)
    assert "s3://other" in words(site.get("/?left=1").text)


def test_the_oldest_assessment_is_told(site: Site) -> None:
    site.store.save(assessment())
    site.store.save(assessment("never", assessed_at=NOW - timedelta(minutes=12)))
    assert "All assessed within the last 12 minutes" in words(site.get("/").text)
    site.store.save(assessment("never", assessed_at=NOW - timedelta(hours=3)))
    page = words(site.get("/").text)
    assert "Last assessment 3 minutes ago; the oldest, of never, 3 hours ago" in page


def test_chips_do_not_pile_up(site: Site) -> None:
    due, _ = assessment().operations
    names = ("checkpoint", "optimize", "compact-log", "clean-log")
    several = tuple(
        replace(
            due, operation=name, reason=f"because of {name}", needs_approval=name == "clean-log"
        )
        for name in names
    )
    site.store.save(assessment(operations=several))
    page = site.get("/").text
    cell = page[
        page.index('<td class="due">') : page.index("</td>", page.index('<td class="due">'))
    ]
    chips = re.findall(r'class="chip [\w-]*"[^>]*>(.*?)<', cell)
    assert chips == ["clean-log: needs approval", "checkpoint: due"]
    assert 'title="optimize: due, compact-log: due">+2</a>' in cell
    assert cell.count("because of") == 2 and ">because of clean-log</span>" in cell


@pytest.mark.parametrize(
    ("commits", "text"), [(1, "Only one is retained: version "), (9, "9 are retained, ")]
)
def test_few_commits_and_sizes_are_sentences(site: Site, commits: int, text: str) -> None:
    known = health()
    few = replace(known, commits=known.commits[-commits:], file_sizes=known.file_sizes[:1])
    site.store.save(assessment(health=few))
    page = site.get("/table?name=orders").text
    assert "<svg" not in page and "As a table" not in page
    assert text in words(page)
    size = known.file_sizes[0].from_bytes >> 10
    assert f"files have {size} KiB to {2 * size} KiB." in words(page)
    two = replace(few, num_files=3, file_sizes=known.file_sizes[:2])
    site.store.save(assessment(health=two))
    assert "File sizes 3 data files: " in words(site.get("/table?name=orders").text)


def test_commits_are_counted_by_the_hour_or_the_day(site: Site) -> None:
    known = health()
    site.store.save(assessment(health=known))
    assert "Commits in each hour" in words(site.get("/table?name=orders").text)
    first, *others = known.commits
    for days, unit in ((20, "day"), (200, "week"), (20_000, "48 weeks")):
        # A writer whose clock is wrong must not make the bars countless.
        early = replace(first, timestamp=NOW - timedelta(days=days))
        site.store.save(assessment(health=replace(known, commits=(early, *others))))
        page = site.get("/table?name=orders").text
        assert f"Commits in each {unit}" in words(page)
        assert page.count("<rect") < 200
    at_once = tuple(replace(commit, timestamp=NOW) for commit in known.commits)
    site.store.save(assessment(health=replace(known, commits=at_once)))
    page = words(site.get("/table?name=orders").text)
    assert "Commits in each" not in page and f"{len(at_once)} are retained" in page


def test_a_stopped_dag_is_reported(site: Site) -> None:
    site.store.save(assessment(assessed_at=NOW - timedelta(hours=2)))
    assert "Is the Dag" not in site.get("/").text
    site.store.save(assessment(assessed_at=NOW - timedelta(hours=4)))
    assert "Is the Dag" in site.get("/").text


def test_a_run_that_failed_makes_its_table_fail_until_nothing_is_due(site: Site) -> None:
    (outcome, *_) = run_result().outcomes
    outcomes = (replace(outcome, status="failed"),)
    problem = "a file could not be written"
    failed = run_result(status="failed", problem=problem, exit_status=1, outcomes=outcomes)
    site.store.save(assessment(), failed, link="/dags/d/runs/r/tasks/run/mapped/7")
    page = site.get("/").text
    assert "a file could not be written" in page
    assert '/dags/d/runs/r/tasks/run/mapped/7" data-leave>task' in page
    calm = tuple(replace(each, status="not-due") for each in assessment().operations)
    site.store.save(assessment(status="nothing-due", operations=calm))
    assert "a file could not be written" not in site.get("/").text


def test_the_page_calls_failed_what_runs_call_failed(site: Site) -> None:
    """An operation that failed and is no longer due is no failure, whatever else is due; one that
    was stopped is, although the table counts as due.
    """
    problem = "too many files; raise the limit"
    outcome = run_result().outcomes[0]
    for operation, status in (("layout", "failed"), (outcome.operation, "stopped")):
        outcomes = (replace(outcome, operation=operation, status=status),)
        ran = run_result(status=status, problem=problem, exit_status=3, outcomes=outcomes)
        site.store.save(assessment(), ran)
        page = site.get("/table?name=orders").text
        assert 'class="chip due"' in page
        is_failure = status == "stopped"
        assert ('class="trouble"' in page) == is_failure
        assert ("Acknowledge this failure" in page) == is_failure
        assert ("1 table</strong></a> failed" in site.get("/").text) is False


def test_the_history_of_a_table_has_its_last_runs(site: Site) -> None:
    for hours in range(3):
        at = NOW - timedelta(hours=hours)
        site.store.save(assessment(), run_result(started_at=at), link=f"/dags/d/runs/r{hours}")
    page = site.get("/table?name=orders").text
    for hours in range(3):
        assert f"/dags/d/runs/r{hours}" in page
    assert "History" in page
    assert "checkpoint: done, vacuum: waits for you" in words(page)


def test_an_unknown_table_is_not_found(site: Site) -> None:
    assert site.get("/table?name=nope").status_code == 404
    assert site.get("/run?name=nope").status_code == 404
    assert site.get("/table").status_code == 422


def test_a_table_page_shows_the_important_facts(site: Site) -> None:
    site.store.save(assessment(), run_result())
    text = Elements.of(site.get("/table?name=orders").text).text
    known = health()
    for expected in (
        f"{known.version:,}",
        f"{known.commits_since_checkpoint} commits",
        known.checkpoint_kind,
        f"{known.num_files:,}",
        f"{known.tombstones:,}",
        "121 commits since the checkpoint of version 1000 are more than 100",
        "in 4 days",
        "waits for you",
        "wrote the checkpoint of version 1121",
        "delta.checkpointPolicy",
        "VACUUM END",
        *known.features,
    ):
        assert expected in text, expected


def test_the_page_shows_the_findings_of_an_assessment(
    site: Site, neglected_table: TableBuilder, tmp_path: Path
) -> None:
    from delta_maintenance import open_table
    from delta_maintenance.policies import assess_table
    from delta_maintenance.policies.definition import load_policy

    uri = neglected_table.store.root
    site.policy.write_text(
        "version: 1\n"
        "defaults: {checkpoint: {max_commits: 5}, vacuum: true, other_writers: none}\n"
        f"tables: [{{name: neglected, uri: {uri}}}, {{name: gone, uri: {tmp_path}/gone}}]\n"
    )
    for table in load_policy(site.policy).named_tables:
        site.store.save(assess_table(open_table(table.uri), table, now=NOW))
    text = Elements.of(site.get("/table?name=neglected").text).text
    assert "10 commits" in text
    assert "v2Checkpoint" in text
    assert "9 – version" not in text
    # One bar of commits, and files of about one size, are said instead of drawn.
    assert text.count("As a table") == 1
    assert "10 are retained, " in text
    assert re.search(r"All \d+ files have .* to .*\.", text)
    rows = site.get("/").text
    assert "operation=checkpoint" in rows
    gone = words(site.get("/table?name=gone").text)
    assert "failed" in gone and f"{tmp_path}/gone" in gone


def test_ages_are_relative_to_the_time_of_the_request(site: Site) -> None:
    site.store.save(assessment(assessed_at=NOW - timedelta(days=3)))
    assert "3 days ago" in site.get("/table?name=orders").text


def test_the_newest_report_on_the_layout_of_files_is_drawn(site: Site) -> None:
    column = ColumnLayout(
        name="customer",
        type="string",
        files_without_bounds=0,
        files_of_nulls=0,
        files_of_one_value=0,
        average_overlap=30.5,
        average_depth=31.5,
        depths=(Depths(up_to=1, files=7), Depths(up_to=32, files=113)),
        point=Reading(files=1.0, bytes=1.0, bytes_after=0.1),
        range=Reading(files=1.0, bytes=1.0, bytes_after=0.1),
    )
    proposal = KeyProposal(
        old_keys=("ordered_at",),
        new_keys=("customer",),
        changed=True,
        pays=True,
        reason="",
        bytes_read=0.6,
        bytes_read_after=0.1,
        bytes_to_rewrite=10**11,
    )
    report = LayoutResult(
        table="s3://lake/sales/orders",
        version=3,
        files=120,
        bytes=10**11,
        partitions=1,
        target_bytes=10**8,
        clustering_columns=("ordered_at",),
        clustering_depth=4.25,
        columns=(column,),
        proposals=(proposal,),
        status="pays",
        reason="clustering by customer pays",
    )
    outcome = OperationOutcome(
        operation="layout",
        status="done",
        reason=report.reason,
        started_at=NOW,
        result=report.to_json(),
    )
    run = run_result()
    site.store.save(assessment(health=health()), replace(run, outcomes=(outcome,)))
    # Another run does not remove it.
    site.store.save(assessment(health=health()), run)
    page = site.get("/table?name=orders").text
    assert "Depth by customer" in page and "the mean is 31.5" in page
    assert re.search('17–32</th>.*<rect width="100.0" .*>113<', page)
    assert "clustering would pay clustering by customer pays Report on version 3" in words(page)
    assert "clustered by ordered_at: a reader of one value opens 4.2 files." in words(page)
    better = replace(report, proposals=(replace(proposal, pays=False),)).to_json()
    later = replace(run, outcomes=(replace(outcome, result=better),))
    site.store.save(assessment(health=health()), later)
    assert "clustering does not pay" in site.get("/table?name=orders").text
    other = {**report.to_json(), "unknown": 1}
    changed = replace(outcome, result=other)
    site.store.save(assessment(health=health()), replace(run, outcomes=(changed,)))
    assert "Depth by" not in site.get("/table?name=orders").text, "a report of another release"


def test_holders_are_in_the_list_and_on_the_page_of_the_table(site: Site) -> None:
    site.store.save(assessment(held=held(4)))
    cell, never = re.findall(r'<td class="wide held">(.*?)</td>', site.get("/").text)
    assert never == "–"
    shown = re.findall(r"<(?:span|small)[^>]*>(.*?)</", cell)
    assert shown == ["audit-2026", "+3 288 MiB"]
    assert "version 1042, until 2027-01-01T00:00:00Z, annual audit" in cell
    text = re.sub(r"<[^>]+>", "", site.get("/table?name=orders").text)
    assert "held by audit-2026 until 2027-01-01: 12 files, 256 MiB" in text
    assert "version 1,042, annual audit" in text
    assert "held by stream orders-to-silver: 3 files, 32 MiB" in text
    assert "1 file, 1 KiB" in text and "held by model" in text
    site.store.save(assessment())
    assert site.get("/").text.count('<td class="wide held">–</td>') == 2
    assert "Held files" not in site.get("/table?name=orders").text


def test_the_page_of_a_table_names_the_property_behind_a_rule(site: Site) -> None:
    table = TableBuilder()
    configuration = {"delta.checkpointInterval": "1", "delta.logRetentionDuration": "garbage"}
    table.commit([protocol(), metadata(configuration=configuration)])
    table.commit([add("a")])
    seen = assess(table.open().snapshot(), asked(**{"from": "properties"}), now=NOW)
    site.store.save(replace(seen, name=assessment().name, uri=assessment().uri))
    text = site.get(f"/table?name={assessment().name}").text
    assert "by delta.checkpointInterval: 2 commits since" in text
    assert "no rule for clean-log from delta.logRetentionDuration" in text
