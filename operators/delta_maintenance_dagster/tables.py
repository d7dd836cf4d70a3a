"""The tables of a policy in Dagster's terms: asset keys, tags, owners and pools."""

# Without `from __future__ import annotations`: Dagster reads the annotations of fields as types.

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import TypeVar, cast

import dagster as dg
from pydantic import Field

from delta_maintenance.address import StoreKind, place_of
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.policies.definition.policy import Policy, PolicyTable

Step = TypeVar("Step", bound=dg.AssetsDefinition)
MAINTENANCE = "maintenance"
"""The last part of the key of every maintenance asset."""
_POOL_LENGTH = 100


class Freshness(dg.Model, dg.Resolvable):
    """A freshness policy: the maximum age of the last event of an asset."""

    fail_hours: float = Field(gt=0, description="Older than this is a failure.")
    warn_hours: float | None = Field(
        default=None, gt=0, description="Older than this is a warning."
    )

    def policy(self) -> dg.FreshnessPolicy:
        """Returns the policy as an object of Dagster."""
        warn = timedelta(hours=self.warn_hours) if self.warn_hours is not None else None
        return dg.FreshnessPolicy.time_window(
            fail_window=timedelta(hours=self.fail_hours), warn_window=warn
        )


class AssetAttributes(dg.Model, dg.Resolvable):
    """Attributes of assets, in addition to those that follow from the policy."""

    group_name: str | None = Field(default=None, description="The group, in place of the default.")
    owners: list[str] = Field(
        default_factory=list, description="Such as `team:data` or an email address."
    )
    kinds: list[str] = Field(default_factory=list, description="Beside `delta`.")
    tags: dict[str, str] = Field(default_factory=dict, description="Beside those of the policy.")
    freshness: Freshness | None = Field(default=None, description="The freshness policy.")

    def of(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Returns the asset with these attributes."""
        attributes = spec.merge_attributes(
            owners=[owner for owner in self.owners if owner not in spec.owners],
            kinds=set(self.kinds),
            tags=self.tags,
        )
        if self.group_name is not None:
            attributes = attributes.replace_attributes(group_name=self.group_name)
        if self.freshness is not None:
            attributes = attributes.replace_attributes(freshness_policy=self.freshness.policy())
        return attributes


@dataclass(frozen=True, kw_only=True)
class DeltaTable:
    """One table with its place in the asset graph.

    `key` is the asset of the table itself, which others write and this package never materialises;
    `maintenance_key` is the asset for its maintenance.
    """

    policy: PolicyTable
    key: dg.AssetKey
    among: Policy | None = None
    """The policy that names or finds the table: a vacuum searches all of its tables for shallow
    clones, as it lists them then. Without it, only the tables that are given together."""
    kept: bool = False
    """Whether the last refresh could not list the table, so that it is as in the one before."""
    declared: bool = True
    """Whether the asset of the table is declared here, or by the project that writes it."""
    attributes: AssetAttributes = field(default_factory=AssetAttributes)
    """Attributes of the asset of the table, if it is declared here."""
    maintenance_attributes: AssetAttributes = field(default_factory=AssetAttributes)
    """Attributes of the asset for its maintenance."""

    @property
    def uri(self) -> str:
        """The address of the table."""
        return self.policy.uri

    @property
    def label(self) -> str:
        """The table for people: its name in the catalog that lists it, or else its address."""
        return self.policy.name if self.policy.catalog_name is not None else self.uri

    @property
    def location(self) -> dict[str, str]:
        """Metadata that says where the table is, and its name in a catalog."""
        name = self.policy.catalog_name
        table_name = {} if name is None else {"dagster/table_name": name.pattern_text}
        not_listed = {"delta/not_listed": "as in an earlier refresh"} if self.kept else {}
        return {"dagster/uri": self.uri, **table_name, **not_listed}

    @property
    def maintenance_key(self) -> dg.AssetKey:
        """The key of the table with a suffix."""
        return dg.AssetKey([*self.key.path, MAINTENANCE])

    @property
    def op_name(self) -> str:
        """The key as a valid Python name."""
        return "__".join(re.sub(r"\W", "_", name, flags=re.ASCII) for name in self.key.path)

    @property
    def stand_in(self) -> dg.AssetKey:
        """A key of one valid name, in place of that of the table until `with_keys`."""
        return dg.AssetKey([self.op_name])

    @property
    def pool(self) -> str:
        """The pool whose only slot is the lease of the table: equal for all forms of one address in
        all code locations, keys and sensors.
        """
        store, host, path = place_of(self.uri)
        place = f"/{path}" if store == StoreKind.LOCAL else f"{store}://{host}/{path}"
        name = re.sub(r"[^A-Za-z0-9_./-]+", "_", place)
        if len(name) > _POOL_LENGTH:
            name = f"{sha256(place.encode()).hexdigest()[:16]}_{name[-_POOL_LENGTH:]}"
        return f"delta_{name}"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the policy that are valid in Dagster."""
        # A tag of a catalog has a value.
        pairs = (tag.partition("=") for tag in self.policy.tags)
        tags = {_tag(key): _tag(value) for key, _, value in pairs}
        return {key: value for key, value in tags.items() if key}

    @property
    def owners(self) -> list[str]:
        """The owner in the policy: an email address, or else a team."""
        owner = self.policy.owner
        if owner is None:
            return []
        return [owner if "@" in owner or owner.startswith("team:") else f"team:{owner}"]

    @property
    def group(self) -> str | None:
        """The catalog and the schema of the table, or else its folder; None if it has neither."""
        name = self.policy.catalog_name
        parts = self.key.path if name is None else name.parts
        return "_".join(re.sub(r"\W", "_", part, flags=re.ASCII) for part in parts[:-1]) or None

    def spec(self) -> dg.AssetSpec:
        """Returns the asset of the table, for tables without an asset in the project."""
        spec = dg.AssetSpec(
            self.key,
            description=f"The Delta table `{self.label}`.",
            group_name=self.group,
            kinds={"delta"},
            owners=self.owners,
            tags=self.tags,
            metadata=self.location,
        )
        return self.attributes.of(spec)

    def maintenance_spec(self, group_name: str) -> dg.AssetSpec:
        """Returns the asset for the maintenance of the table, which depends on its stand-in."""
        spec = dg.AssetSpec(
            self.maintenance_key,
            deps=[self.stand_in],
            description=(
                f"Maintenance of the Delta table `{self.label}`: the operations that are due, in "
                "order. The launchpad accepts an operation, its options, and `plan_only`."
            ),
            group_name=group_name,
            kinds={"delta"},
            owners=self.owners,
            tags=self.tags,
            metadata=self.location,
            # A plan materialises nothing.
            skippable=True,
        )
        return self.maintenance_attributes.of(spec)


def asset_key_of(name: str) -> dg.AssetKey:
    """Returns the key for the name of a table: `lake/orders` from `s3://lake/orders`.

    Characters that Dagster does not accept in a key are replaced by `_`.
    """
    path = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:/+", "", name)
    names = re.sub(r"[^A-Za-z0-9_./-]", "_", path).strip("/").split("/")
    return dg.AssetKey([part for part in names if part] or ["table"])


def with_keys(step: Step, tables: Iterable[DeltaTable]) -> Step:
    """Replaces the stand-ins in a step by the keys of the tables.

    Dagster names the inputs of a step by the keys of assets, with all characters but the hyphen
    and, from 1.13, the point.
    """
    keys = {table.stand_in: table.key for table in tables}
    return cast(Step, step.with_attributes(asset_key_replacements=keys))


def _tag(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)[:63]


def require_unique_keys(tables: Iterable[DeltaTable]) -> None:
    """Raises `InvalidRequestError` if two tables share an asset key, or the name that Dagster
    derives from it.
    """
    tables_by_name: dict[str, DeltaTable] = {}
    for table in tables:
        first = tables_by_name.setdefault(table.op_name.lower(), table)
        if first is not table:
            raise InvalidRequestError(
                f"{first.uri} and {table.uri} would both be the asset {table.key.to_user_string()}",
                remedy="give one of them another key",
            )
