"""`publish` from the command line, Python and a policy, with a server of Unity Catalog and vended
credentials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from delta_maintenance import DeltaTable
from delta_maintenance.catalogs import source_of
from delta_maintenance.cli.main import main
from delta_maintenance.clock import instant
from delta_maintenance.errors import CatalogError
from delta_maintenance.policies import assess_table
from delta_maintenance.policies.definition import Policy, PolicyTable
from delta_maintenance.policies.run import run
from delta_maintenance.table.read import open_table
from tests.support.emulators.s3_server import S3Server
from tests.support.servers.unity_delta import UnityServer, serve_guarded_table
from tests.support.tables.actions import add, commit_info
from tests.support.tables.managed import Managed
from tests.support.tables.policy_tables import asked
from tests.support.tables.table_builder import log_text

pytestmark = pytest.mark.server

_NAME = "uc://main.s.t"
_DONE = ("published", "reported")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def unity(s3_server: S3Server, s3_bucket: str) -> Iterator[UnityServer]:
    """A table with two commits that the catalog ratified, and that nobody has published."""
    source_of.cache_clear()
    with serve_guarded_table(s3_server, s3_bucket) as server:
        table = server.tables["main.s.t"]
        table.managed, table.latest = True, 4
        for version in (3, 4):
            data = log_text([commit_info(inCommitTimestamp=version), add(f"{version}.parquet")])
            name = f"{version:020}.{version:08}-0000-4000-8000-000000000000.json"
            s3_server.fill(s3_bucket, [f"t/_delta_log/_staged_commits/{name}"], data)
            table.commits.append(
                {
                    "version": version,
                    "timestamp": version,
                    "file-name": name,
                    "file-size": len(data),
                    "file-modification-timestamp": 1,
                }
            )
        yield server


@pytest.fixture
def options(unity: UnityServer, s3_server: S3Server) -> dict[str, str]:
    own = {name: v for name, v in s3_server.storage_options.items() if name not in _KEYS}
    return {**own, **unity.options}


@pytest.fixture
def words(options: dict[str, str]) -> list[str]:
    return [w for name, v in options.items() for w in ("--storage-option", f"{name}={v}")]


def test_the_command_publishes_and_reports_what_the_dry_run_lists(
    unity: UnityServer,
    words: list[str],
    s3_server: S3Server,
    s3_bucket: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["publish", _NAME, *words, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [commit["version"] for commit in planned["commits"]] == [3, 4]
    assert (unity.vended(), s3_server.requests) == ([], [])
    assert main(["publish", _NAME, *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["status"], result["reported_version"]) == ("published", 4)
    assert unity.tables["main.s.t"].commits == []
    # Not for reading first, although the first request reads.
    assert unity.vended() == ["READ_WRITE"]
    # Each new client of a store tries once whether conditional puts work.
    sent = [line for line in s3_server.requests if ".probe" not in line]
    assert len(sent) == 7
    puts = [line for line in sent if line.startswith("PUT")]
    assert [line.rpartition("/")[2] for line in puts] == [f"{3:020}.json", f"{4:020}.json"]
    s3_server.requests.clear()
    unity.requests.clear()
    assert main(["publish", _NAME, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "nothing-to-do"
    # One request looks for the latest version, with the credentials of the run before.
    assert (unity.vended(), len(s3_server.requests)) == ([], 1)
    assert sum("/delta/v1/catalogs/" in line for line in unity.requests) == 1


def test_an_address_says_that_the_name_is_needed(
    unity: UnityServer, options: dict[str, str], words: list[str], capsys: Any
) -> None:
    assert main(["publish", unity.tables["main.s.t"].location, *words]) == 2
    assert "give the name of a catalog-managed table" in capsys.readouterr().err


def test_a_table_that_is_not_catalog_managed_has_no_commits_to_publish(
    unity: UnityServer, words: list[str], capsys: Any
) -> None:
    unity.tables["main.s.t"].managed = False
    assert main(["publish", _NAME, *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"({_NAME}): " in line and "give the name of a catalog-managed table" in line


def test_without_the_right_to_write_nothing_is_read(
    unity: UnityServer, options: dict[str, str], s3_server: S3Server
) -> None:
    unity.tables["main.s.t"].rights = frozenset(("READ",))
    with pytest.raises(CatalogError, match="SELECT and MODIFY"):
        DeltaTable(_NAME, options).publish()
    assert s3_server.requests == []


def test_keys_that_end_are_renewed(
    unity: UnityServer, options: dict[str, str], s3_server: S3Server
) -> None:
    unity.lifetime_ms = 12_000
    result = DeltaTable(_NAME, options).publish()
    assert result.reported_version == 4
    unity.reject_keys()
    assert DeltaTable(_NAME, options).snapshot().version == 4


def _policy_table(unity: UnityServer) -> PolicyTable:
    document = {
        "version": 1,
        "tables": [{"uri": unity.tables["main.s.t"].location, "name": "t", "publish": True}],
    }
    return Policy.model_validate(document).named_tables[0]


def test_a_policy_publishes_what_is_due(
    unity: UnityServer, options: dict[str, str], s3_server: S3Server
) -> None:
    table, rules = open_table(_NAME, options), _policy_table(unity)
    listed = unity.tables["main.s.t"].commits
    result = run(table, rules)
    assert (result.status, unity.tables["main.s.t"].commits) == ("done", [])
    # A report is work as well: writers wait for it.
    unity.tables["main.s.t"].commits = listed
    reported = run(table, rules)
    for outcome, status in zip([*result.outcomes, *reported.outcomes], _DONE, strict=True):
        assert outcome.result is not None and outcome.result["status"] == status
        assert not outcome.is_idle
    assert assess_table(table, rules, now=instant(5_000)).status == "nothing-due"


@pytest.mark.parametrize(
    ("rule", "now_ms", "status"),
    [
        ({"max_commits": 3}, 2_000, "due"),
        ({"max_commits": 4}, 2_000, "not-due"),
        ({"max_commits": None, "max_age": "1 min"}, 61_000, "not-due"),
        ({"max_commits": None, "max_age": "1 min"}, 61_001, "due"),
        (True, 2_000, "due"),
    ],
)
def test_the_rule_is_due_by_number_and_by_age(rule: Any, now_ms: int, status: str) -> None:
    from delta_maintenance.policies.assess import assess

    managed = Managed()
    for _ in range(3):
        managed.ratify()
    snapshot = managed.table().snapshot()
    (operation,) = assess(snapshot, asked(publish=rule), now=instant(now_ms)).operations
    assert operation.status == status
    assert operation.due_at == (None if status == "due" or now_ms < 3_000 else instant(61_001))
