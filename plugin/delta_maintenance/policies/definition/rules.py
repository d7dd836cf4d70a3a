"""The rules for one table: those of the operations, and those that apply to all of them.

An omitted key has no value, so that another layer of the policy can set it. An operation that no
layer names does not run. The keys follow from the registry of operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    create_model,
)
from pydantic_core import CoreSchema

from delta_maintenance.errors import InvalidRequestError, RefusedError
from delta_maintenance.operations.core import flags
from delta_maintenance.operations.core.operation import PolicyPart, load
from delta_maintenance.operations.core.policy_values import Duration, PolicyModel, StorageRule
from delta_maintenance.operations.core.registry import policy_operations
from delta_maintenance.operations.core.rules import EngineRule, Limits, Rule, with_options
from delta_maintenance.operations.holds.models import Holders
from delta_maintenance.policies.definition.holders import ClonesRule, KeepRule, ReaderRule
from delta_maintenance.policies.definition.hours import Hours
from delta_maintenance.quantities import duration_text
from delta_maintenance.submission.configuration import checked_conf

_RECORDS = policy_operations()
_PARTS: Mapping[str, PolicyPart] = {
    record.name: record.policy for record in _RECORDS if record.policy is not None
}
"""The policy part of each operation, in the order in which they run."""

if TYPE_CHECKING:
    from delta_maintenance.operations.core.registry import AnyOperation
    from delta_maintenance.table.read.snapshot import Snapshot

    OperationName = str
else:
    OperationName = Literal[tuple(_PARTS)]
    """An operation that a policy can request."""


def _spark_conf(conf: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return checked_conf(conf)
    except InvalidRequestError as error:
        raise ValueError(f"{error.problem}; {error.remedy}") from None


class SparkRule(PolicyModel):
    """How to reach Spark, for the code that submits jobs."""

    connection: str | None = None
    """The connection of an orchestrator."""
    master: str | None = None
    """A URL such as `spark://HOST:7077`, for the command line."""
    conf: Annotated[Mapping[str, str], AfterValidator(_spark_conf)] = Field(default_factory=dict)
    """Spark properties that are allowed (`submission.configuration`)."""


class Switch:
    """Converts `true` to a rule with its defaults, and `false` to no rule."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "boolean"}]}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return handler(source)


def switched(value: object) -> object:
    """Returns the value of a key that a switch converts."""
    return {} if value is True else None if value is False else value


def _operations(names: tuple[OperationName, ...]) -> tuple[OperationName, ...]:
    return tuple(name for name in _PARTS if name in names)


Operations = Annotated[tuple[OperationName, ...], AfterValidator(_operations)]


_KINDS: Mapping[str, type[Rule]] = {
    part.key: with_options(
        load(part.rule),
        [record.options for record in _RECORDS if _PARTS[record.name].key == part.key],
    )
    for part in _PARTS.values()
    if part.rule != "bool"
}
"""The rule of each key, with the options of all operations that share the key."""


def _key(policy_part: PolicyPart) -> tuple[Any, Any]:
    """The type and the default of an operation's key."""
    key_field = Field(default=None, description=policy_part.description)
    if policy_part.rule == "bool":
        return bool | None, key_field
    rule = _KINDS[policy_part.key]
    return Annotated[rule | None, BeforeValidator(switched), Switch()], key_field


_FROM = Field(
    default="policy",
    description="`properties`: properties of the table request operations for which the policy has "
    "no rule.",
)
_AUTO_COMPACT = "delta.autoOptimize.autoCompact"
_OUTWEIGHING = (_AUTO_COMPACT, "delta.enableExpiredLogCleanup")
"""The properties whose `false` outweighs the next ones."""
_REQUESTS = (
    ("optimize", "delta.autoOptimize"),
    ("optimize", _AUTO_COMPACT),
    ("optimize", "delta.autoOptimize.optimizeWrite"),
    ("checkpoint", "delta.checkpointInterval"),
    ("clean-log", "delta.enableExpiredLogCleanup"),
    ("clean-log", "delta.logRetentionDuration"),
    ("vacuum", "delta.deletedFileRetentionDuration"),
)
"""Operations and the properties that request them, in the order in which they decide."""


if TYPE_CHECKING:
    _OperationRules = PolicyModel
else:
    _OperationRules = create_model(
        "_OperationRules",
        __base__=PolicyModel,
        **{part.key: _key(part) for part in _PARTS.values()},
        # A keyword of Python cannot be declared like the other keys.
        **{"from": (Literal["policy", "properties"], _FROM)},
    )


class Rules(_OperationRules):
    """The rules of a table. Each operation has its own rule, `true` or `false`."""

    engine: EngineRule = EngineRule()
    """The engine."""
    spark: SparkRule = SparkRule()
    """How to reach Spark."""
    storage: StorageRule = StorageRule()
    """How to reach the table's store."""
    hours: Hours | None = None
    """When maintenance may run; always, by default."""
    other_writers: flags.OtherWritersField = None
    quiet: Duration | None = None
    """With `other_writers: spark`: operations commit if no other writer has committed for this
    long, and keep a copy of each commit, which shows later whether Delta Spark overwrote it."""
    limits: Limits = Limits()
    """Limits that end a run."""
    keep: tuple[KeepRule, ...] = ()
    """Versions whose files and log stay, whatever the retention."""
    readers: tuple[ReaderRule, ...] = ()
    """Readers, for which the versions stay that they have not read."""
    clones: ClonesRule = ClonesRule()
    """Shallow clones of the table, whose files a vacuum keeps."""
    approval: Operations | None = None
    """Operations that run only after an approval. `expire` does unless its rule says
    `approval: false`, and so do deletions that properties of the table request, unless this is
    `[]`."""

    if TYPE_CHECKING:
        # The keys of operations come from the registry, which type checkers do not know.
        def __init__(self, **values: Any) -> None: ...
        def __getattr__(self, key: str) -> Any: ...

    def value(self, key: str) -> object:
        """The value of the key of an operation; None if the key is absent."""
        return getattr(self, key, None)

    def needs_approval(self, operation: str) -> bool:
        """Whether an operation runs only after an approval."""
        policy_part = _PARTS.get(operation)
        rule = None if policy_part is None else self.value(policy_part.key)
        return operation in (self.approval or ()) or bool(getattr(rule, "approval", False))

    @property
    def asks(self) -> bool:
        """Whether any operation runs only after an approval, or may because of properties."""
        may_ask = self.reads_properties and self.approval is None
        return may_ask or any(map(self.needs_approval, _PARTS))

    @property
    def reads_properties(self) -> bool:
        """Whether properties of the table add rules."""
        return self.value("from") == "properties"

    @property
    def holders(self) -> Holders:
        """What holds versions and files."""
        return Holders(
            keep=tuple(rule.kept_version() for rule in self.keep),
            readers=tuple(rule.reader() for rule in self.readers),
            clones=self.clones.also,
        )

    def asking_for(self, operation: str) -> Rules:
        """Rules that request one operation immediately, and no others.

        An operation without a policy key has no rule of its own; the common rules are kept.
        """
        other_rules = {
            name: getattr(self, name)
            for name in (
                "engine",
                "spark",
                "storage",
                "other_writers",
                "quiet",
                "limits",
                "keep",
                "readers",
                "clones",
            )
        }
        policy_part = _PARTS.get(operation)
        forced_rule = (
            {}
            if policy_part is None
            else {policy_part.key: _at_once(policy_part, self.value(policy_part.key))}
        )
        return Rules(**other_rules, **forced_rule)


def _at_once(policy_part: PolicyPart, value: object) -> Rule | bool:
    if policy_part.rule == "bool":
        return True
    if isinstance(value, Rule):
        return value.at_once()
    kind = _KINDS[policy_part.key]
    # A rule such as that of `expire` cannot be made without values: the request has them.
    needs_values = any(field.is_required() for field in kind.model_fields.values())
    return False if needs_values else kind().at_once()


def complete_rules(
    rules: Rules, configuration: Mapping[str, str]
) -> tuple[Rules, Mapping[str, str | None], Sequence[str]]:
    """Adds what the properties of a table request, if its policy asks for that.

    Returns the rules, the properties behind the added ones by operation, and a text for each value
    that cannot be read. A key that the policy has, even `false`, stays. Added deletions need an
    approval, unless the policy says `approval: []`.
    """
    if not rules.reads_properties:
        return rules, {}, ()
    # Imported here, because reading a policy needs no parsers.
    from delta_maintenance.protocol.changes.property_rules import RULES

    parsers = {rule.name: rule.parse for rule in RULES}
    added: dict[str, Any] = {}
    sources: dict[str, str | None] = {}
    problems: list[str] = []
    for operation, name in _REQUESTS:
        key, text = _PARTS[operation].key, configuration.get(name)
        # Checkpoints may contain nulls, which mean no value.
        if text is None or operation in sources or key in rules.model_fields_set:
            continue
        is_of_databricks = name == _AUTO_COMPACT and text.lower() in ("auto", "legacy")
        try:
            value = is_of_databricks or parsers[name](text)
        except InvalidRequestError as error:
            problems.append(f"no rule for {operation} from {name}: {error}")
            value = None
        if value is not None and value is not False:
            sources[operation] = name
            values = {"max_commits": value} if operation == "checkpoint" else {}
            added[key] = _KINDS[key].model_validate(values)
        elif value is None or name in _OUTWEIGHING:
            sources[operation] = None
    if rules.approval != ():
        deletions = (r.name for r in _RECORDS if sources.get(r.name) and r.effects.deletes)
        added["approval"] = (*(rules.approval or ()), *deletions)
    return rules.model_copy(update=added), sources, problems


def with_promises(
    options: Any, record: AnyOperation, rules: Sequence[Rules], snapshot: Snapshot | None
) -> Any:
    """Returns the options of an operation with what the rules of its table hold: the holders of all
    of them and, of a snapshot, the longest retention.

    The first rules are those of the table's own entry, the others those under other names of it.
    Raises `RefusedError` for a retention that a caller gave and that is shorter than that of the
    first, unless both flags allow it.
    """
    longest: dict[str, timedelta] = {}
    for number, rule_set in enumerate(rules if snapshot is not None else ()):
        rule = None if record.policy is None else rule_set.value(record.policy.key)
        promised = rule.promised(snapshot) if isinstance(rule, Rule) and snapshot else {}
        for name, promised_length in promised.items():
            option_length: timedelta | None = getattr(options, name)
            is_short = option_length is not None and option_length < promised_length
            if is_short and options.allow_short_retention and options.no_other_writers:
                continue
            if option_length is not None and is_short and not number:
                raise RefusedError(
                    f"a retention of {duration_text(option_length)} is shorter than that of the "
                    f"policy, {duration_text(promised_length)}",
                    remedy=f"leave out {name}, or give both flags that allow a short retention",
                )
            longest[name] = max(
                option_length or promised_length,
                promised_length,
                longest.get(name, promised_length),
            )
    held = options.holders.and_those(rule_set.holders for rule_set in rules)
    return replace(options, holders=held, **longest)
