"""The policy document: its contents, the merging of its layers, and its error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core import AnyOperation, policy_operations
from delta_maintenance.operations.core.flags import FlagField, flag_fields
from delta_maintenance.operations.core.operation import load as load_reference
from delta_maintenance.policies.definition import Policy, PolicyTable, json_schema, load_policy
from delta_maintenance.policies.definition.rules import Rules

DECLARED_AGAIN = {
    # A policy allows fewer values of these, or a null,
    "checkpoint": {"incremental"},
    "vacuum": {"archived", "mode", "retention"},
    # and without columns it takes those that the table is clustered by.
    "layout": {"columns"},
}
RULES = [
    pytest.param(record, id=record.name)
    for record in policy_operations()
    if record.policy is not None and record.policy.rule != "bool"
]
DOCS = Path(__file__).parents[3] / "docs"
Load = Callable[..., Policy]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Reads a policy from its text."""

    def read(text: str, **environment: str) -> Policy:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return load_policy(path, environment)

    return read


def problem(load: Load, text: str, **environment: str) -> str:
    """Returns the error message for an invalid policy."""
    with pytest.raises(InvalidRequestError) as raised:
        load(text, **environment)
    line = str(raised.value)
    assert "policy.yaml" in line and "\n" not in line and ";" in line
    return line


# Contents.


def test_lengths_of_time_and_bytes_are_read_as_people_write_them(load: Load) -> None:
    rules = load(
        """
version: 1
defaults:
  vacuum: {every: 7 days 12 hours, min_reclaimable: 10 GiB, retention: P30D}
  checkpoint: {max_bytes: 1024}
"""
    ).defaults
    assert rules.vacuum is not None and rules.checkpoint is not None
    assert rules.vacuum.every == timedelta(days=7, hours=12)
    assert rules.vacuum.min_reclaimable == 10 << 30
    assert rules.vacuum.retention == timedelta(days=30)
    assert rules.checkpoint.max_bytes == 1024


def test_an_unnamed_operation_is_not_requested(load: Load) -> None:
    rules = load("version: 1\ntables: [{uri: /t}]").named_tables[0].rules
    assert rules == Rules()
    assert rules.vacuum is rules.checkpoint is rules.clean_log is rules.compact_log is None
    assert rules.fsck is rules.protocol is rules.row_tracking is None


def test_true_is_a_rule_with_its_defaults_and_false_is_none(load: Load) -> None:
    rules = load("version: 1\ndefaults: {vacuum: true, fsck: false}").defaults
    assert rules.vacuum is not None and rules.vacuum.every == timedelta(days=7)
    assert rules.fsck is None


def test_addresses_take_the_environment_and_lose_their_last_slash(load: Load) -> None:
    policy = load("version: 1\ntables: [{uri: '${env:LAKE}/t/'}]", LAKE="s3://lake")
    assert policy.named_tables[0].uri == "s3://lake/t"
    assert policy.named_tables[0].name == "s3://lake/t"


def test_a_json_file_is_a_policy_too(load: Load) -> None:
    assert load('{"version": 1, "tables": [{"uri": "/t"}]}').named_tables[0].uri == "/t"


def test_a_table_travels_as_json(load: Load) -> None:
    table = load(
        """
version: 1
defaults:
  vacuum: {every: 1 day, min_reclaimable: 1 GiB}
  hours: {timezone: Europe/Paris, windows: ['22:00-06:00']}
  limits: {max_duration: 2 hours}
  storage: {connection: lake, options: {AWS_SECRET_ACCESS_KEY: '${env:KEY}'}}
  approval: [vacuum, upgrade-protocol]
tables: [{name: t, uri: /t, owner: me, tags: [a], fsck: {deep: true}, compact_log: false}]
"""
    ).named_tables[0]
    assert PolicyTable.from_json(json.loads(json.dumps(table.to_json()))) == table
    assert table.rules.approval == ("upgrade-protocol", "vacuum"), "in the order of a run"


# How its layers merge.


def test_the_first_matching_pattern_overrides_defaults_and_is_overridden_by_an_own_entry(
    load: Load,
) -> None:
    policy = load(
        """
version: 1
defaults:
  vacuum: {every: 7 days, mode: lite}
  checkpoint: {max_commits: 1, kind: classic}
tables:
- {pattern: /lake/**, exclude: [/lake/raw], checkpoint: {max_commits: 2}, owner: lake, tags: [a]}
- {pattern: /lake/*, checkpoint: {max_commits: 3}, vacuum: false}
- {name: own, uri: /lake/t, checkpoint: {max_commits: 4}, tags: [b]}
"""
    )
    own, found, raw = (policy.table_at(uri) for uri in ("/lake/t", "/lake/u/", "/lake/raw/x"))
    assert [t.rules.checkpoint and t.rules.checkpoint.max_commits for t in (own, found, raw)] == [
        4,
        2,
        1,
    ]
    assert all(t.rules.checkpoint and t.rules.checkpoint.kind == "classic" for t in (own, found))
    assert all(t.rules.vacuum and t.rules.vacuum.mode == "lite" for t in (own, found, raw))
    assert (own.name, own.owner, own.tags) == ("own", "lake", ("b",))
    assert (found.name, found.uri, found.owner, found.tags) == ("u", "/lake/u", "lake", ("a",))
    assert policy.named_tables == (own,)


_SWITCHED: dict[str, st.SearchStrategy[Any]] = {
    "vacuum": st.fixed_dictionaries(
        {}, optional={"mode": st.sampled_from(["full", "lite"]), "every": st.just("3 days")}
    ),
    "checkpoint": st.fixed_dictionaries(
        {}, optional={"max_commits": st.integers(1, 9), "kind": st.just("classic")}
    ),
    "protocol": st.fixed_dictionaries(
        {},
        optional={
            "features": st.lists(st.sampled_from(["a", "b"]), max_size=2),
            "properties": st.dictionaries(st.sampled_from(["p", "q"]), st.sampled_from(["1", "2"])),
        },
    ),
}
_LAYER = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.booleans() | rule for name, rule in _SWITCHED.items()},
        "row_tracking": st.booleans(),
        "limits": st.fixed_dictionaries({}, optional={"max_commits": st.integers(0, 9)}),
        "approval": st.lists(st.sampled_from(["vacuum", "fsck"]), unique=True),
    },
)


def _model(lower: Any, upper: Any) -> Any:
    """The rule of the documentation, over plain values."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    keys = lower.keys() | upper.keys()
    return {k: _model(lower.get(k), upper[k]) if k in upper else lower[k] for k in keys}


def _plain(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a layer in which `true` is replaced by an empty rule."""
    return {k: {} if v is True and k in _SWITCHED else v for k, v in layer.items()}


@given(_LAYER, _LAYER, _LAYER)
def test_mappings_merge_key_by_key_and_everything_else_replaces(
    defaults: dict[str, Any], pattern: dict[str, Any], own: dict[str, Any]
) -> None:
    policy = Policy.from_json(
        {
            "version": 1,
            "defaults": defaults,
            "tables": [{"pattern": "/lake/*", **pattern}, {"uri": "/lake/t", **own}],
        }
    )
    merged: dict[str, Any] = {}
    for layer in (defaults, pattern, own):
        for key, value in _plain(layer).items():
            merged[key] = _model(merged.get(key), value) if key in merged else value
    assert policy.named_tables[0].rules == Rules.model_validate(merged)


# Error messages.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2", ("line 1", "version")),
        ("{}", ("version", "missing")),
        ("- 1", ("line 1", "mapping")),
        ("", ("mapping",)),
        ("a: [", ("line 2", "YAML")),
        ("version: 1\nversion: 1", ("line 2", "'version' occurs twice")),
        ("version: 1\ntables:\n- uri: /a\n  vaccum: true", ("line 4", "tables[0].vaccum")),
        ("version: 1\nbudget:\n  owners: {a: 0.4}", ("line 2", "budget: a budget needs a limit")),
        ("version: 1\nbudget:\n  owners: {a: 40%}", ("line 3", "budget.owners.a", "40% as 0.4")),
        ("version: 1\ndefaults: {vacuum: {every: 7}}", ("vacuum.every", "unit")),
        ("version: 1\ndefaults: {vacuum: {every: 1 month}}", ("'1 month'",)),
        (
            "version: 1\ndefaults: {vacuum: {min_reclaimable: -1}}",
            ("min_reclaimable", "greater than or equal to 0"),
        ),
        ("version: 1\ndefaults: {checkpoint: {max_commits: 0}}", ("max_commits", "1")),
        ("version: 1\ndefaults: {vacuum: 3}", ("defaults.vacuum", "mapping")),
        ("version: 1\ndefaults: {approval: [compact]}", ("approval[0]",)),
        ("version: 1\ndefaults: {limits: {max_deleted_share: 2}}", ("max_deleted_share",)),
        ("version: 1\ntables: [{uri: /a, pattern: /b}]", ("a uri, a pattern or a catalog",)),
        ("version: 1\ntables: [{name: a}]", ("a uri, a pattern or a catalog",)),
        ("version: 1\ntables: [{uri: /a, exclude: [/b]}]", ("only a pattern",)),
        ("version: 1\ntables: [{uri: /a}, {uri: /a/}]", ("/a", "keep one")),
        ("version: 1\ntables: [{uri: /a, name: n}, {uri: /b, name: n}]", ("named n",)),
        ("version: 1\ntables: [{uri: ''}]", ("cannot be empty",)),
        ("version: 1\ntables: [{uri: '${env:NOPE}/a'}]", ("NOPE", "set it")),
        ("version: 1\ndefaults: {hours: {windows: [99:00-10:00]}}", ("hours.windows",)),
        ("version: 1\ndefaults: {hours: {timezone: Mars, windows: ['1:00-2:00']}}", ("Mars",)),
        ("version: 1\ndefaults: {spark: {conf: {spark.jars: x}}}", ("spark.jars",)),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_its_remedy(
    load: Load, text: str, words: tuple[str, ...]
) -> None:
    line = problem(load, text)
    assert all(word in line for word in words), line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_policy(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        load_policy(tmp_path / "latin.yaml")


CANARY = "hunter2canary"


@pytest.mark.parametrize(
    "text",
    [
        f"storage: {{options: {{AWS_SECRET_ACCESS_KEY: {CANARY}}}}}",
        f"storage: {{options: {{AZURE_STORAGE_SAS_TOKEN: '{CANARY}'}}}}",
        f"storage: {{options: {{AZURE_STORAGE_ACCOUNT_KEY: '${{env:A}}{CANARY}'}}}}",
        f"spark: {{conf: {{spark.hadoop.fs.s3a.secret.key: {CANARY}}}}}",
    ],
)
def test_a_secret_is_refused_and_never_repeated(load: Load, text: str) -> None:
    line = problem(load, f"version: 1\ndefaults: {{{text}}}", A="x")
    assert CANARY not in line


@pytest.mark.parametrize(
    "uri",
    [f"s3://key:{CANARY}@lake/t", f"https://a/t?sv=1&sig={CANARY}", f"abfss://u:{CANARY}@x/t"],
)
def test_an_address_with_credentials_is_refused_and_never_repeated(load: Load, uri: str) -> None:
    line = problem(load, f"version: 1\ntables: [{{uri: '{uri}'}}]")
    assert "credentials" in line and CANARY not in line


def test_secrets_as_references_stay_references(load: Load) -> None:
    policy = load(
        """
version: 1
defaults:
  storage:
    options:
      AWS_SECRET_ACCESS_KEY: ${env:KEY}
      AWS_SKIP_SIGNATURE: 'true'
      GOOGLE_APPLICATION_CREDENTIALS: /key.json
tables: [{uri: /t}]
""",
        KEY=CANARY,
    )
    assert CANARY not in json.dumps(policy.named_tables[0].to_json())
    assert policy.defaults.storage.options["AWS_SECRET_ACCESS_KEY"] == "${env:KEY}"


# For editors and for orchestrators.


def test_the_published_schema_and_its_page_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS.parent / "tools")
    from docs_site.policy import page

    schema = json_schema()
    written = json.loads((DOCS / "policy.schema.json").read_text())
    assert written == schema, "run tools/policy_schema.py"
    assert (DOCS / "reference" / "policy.md").read_text() == page(schema), (
        "run tools/policy_schema.py"
    )


def test_the_schema_accepts_what_the_loader_accepts() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    good = yaml.safe_load(
        """
version: 1
defaults: {vacuum: {every: 7 days, min_reclaimable: 1 GiB}, fsck: false, checkpoint: true}
tables: [{uri: /t, hours: {windows: ['22:00-06:00']}}, {pattern: '/l/**', exclude: [/l/x]}]
"""
    )
    assert list(validator.iter_errors(good)) == []
    bad = {"version": 1, "tables": [{"uri": "/t", "vaccum": True}]}
    assert len(list(validator.iter_errors(bad))) == 1


def test_every_key_of_the_document_is_described() -> None:
    undescribed = [
        f"{name}.{key}"
        for name, kind in {**json_schema()["$defs"], "Policy": json_schema()}.items()
        for key, value in kind["properties"].items()
        if "description" not in value
    ]
    assert undescribed == []


@pytest.mark.parametrize("record", RULES)
def test_a_rule_has_the_options_of_its_operation_and_declares_only_when_it_is_due(
    record: AnyOperation,
) -> None:
    assert record.policy is not None
    declared = set(load_reference(record.policy.rule).model_fields)
    options = {field.name: field for field in flag_fields(record.options)}
    assert declared & set(options) == DECLARED_AGAIN.get(record.name, set())
    schema = json_schema()["$defs"][record.policy.rule.split(":")[1]]
    for field in keys_of(record):
        key = schema["properties"][field.name]
        assert key["description"] == field.flag.description
        assert (field.name in schema.get("required", ())) == field.is_required
        if not field.is_required:
            assert key["default"] == json.loads(json.dumps(field.default))


@pytest.mark.parametrize("record", RULES)
def test_a_rule_has_the_bounds_of_the_options(record: AnyOperation) -> None:
    assert record.policy is not None
    for field in keys_of(record):
        if field.bounds is None or field.is_size:
            continue
        least, most = field.bounds.least, field.bounds.most
        for value, is_allowed in [
            (least, True),
            (least - 1, False),
            *([] if most is None else [(most, True), (most + 1, False)]),
        ]:
            document = {"version": 1, "defaults": {record.policy.key: {field.name: value}}}
            if is_allowed:
                Policy.from_json(document)
                continue
            with pytest.raises(InvalidRequestError, match=field.name):
                Policy.from_json(document)
            with pytest.raises(InvalidRequestError, match=field.name):
                record.options(**{field.name: value}).validated()


def keys_of(record: AnyOperation) -> list[FlagField]:
    """The options that a policy can set."""
    return [field for field in flag_fields(record.options) if field.flag.in_policy]


@pytest.mark.process
def test_reading_a_policy_loads_nothing_heavy() -> None:
    code = """
import sys
import delta_maintenance.policies.definition.policy
heavy = {"pyarrow", "numpy", "fsspec", "rich", "pyroaring", "botocore"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_five_hundred_tables_are_read_at_once(load: Load) -> None:
    entries = "\n".join(
        f"- {{name: t{n}, uri: 's3://lake/t{n}', tags: [a], checkpoint: {{max_commits: {n + 1}}}}}"
        for n in range(500)
    )
    text = f"version: 1\ndefaults: {{vacuum: true}}\ntables:\n- pattern: s3://lake/**\n{entries}"
    tables = load(text).named_tables
    told = [table.to_json() for table in tables]
    assert [each["rules"]["checkpoint"]["max_commits"] for each in told] == list(range(1, 501))
