"""The ledger, its own maintenance, and the prices with which it shows money: keys of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field

from delta_maintenance.errors import closest
from delta_maintenance.operations.core.policy_values import Address, PolicyModel, StorageRule
from delta_maintenance.operations.core.rules import Limits
from delta_maintenance.policies.definition.rules import Rules, Switch, switched

LEDGER = "ledger"
"""The name of the ledger among the tables of its policy."""
TABLE_NAME = "delta_maintenance_ledger"
"""The name in the metadata of each ledger."""


class LedgerRule(PolicyModel):
    """The table with a row for each operation that ran."""

    uri: Address
    """Its address; it is created if it does not exist."""
    storage: StorageRule = StorageRule()
    """How to reach its store."""
    maintenance: Annotated[Rules | None, BeforeValidator(switched), Switch()] = Rules()
    """Rules beyond those by which the ledger itself is maintained, or `false` for none. `defaults`
    do not apply to the ledger; an entry of `tables` at its address replaces all of them."""

    @property
    def own_rules(self) -> Rules:
        """The rules of a ledger, which `maintenance` overrides."""
        return Rules(
            checkpoint={"max_commits": 100},
            optimize={"min_files_saved": 50},
            clean_log=True,
            vacuum={"every": "7 days"},
            storage=self.storage,
            # Only recorders write to it, and they put conditionally.
            other_writers="conditional_put",
            # A month has one file after it was optimized, and hundreds before.
            limits=Limits(max_deleted_share=None),
            # A table of the policy that is damaged must not keep the ledger from a vacuum.
            clones={"unreadable": "ignore"},
        )


def _address(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


Ledger = Annotated[LedgerRule, BeforeValidator(_address)]
"""An address alone is enough."""

StorageClass: TypeAlias = Literal[
    # S3
    "STANDARD",
    "INTELLIGENT_TIERING",
    "STANDARD_IA",
    "ONEZONE_IA",
    "EXPRESS_ONEZONE",
    "REDUCED_REDUNDANCY",
    "GLACIER_IR",
    "GLACIER",
    "DEEP_ARCHIVE",
    # Google Cloud Storage
    "NEARLINE",
    "COLDLINE",
    "ARCHIVE",
    # Azure
    "Hot",
    "Cool",
    "Cold",
    "Archive",
]
"""The storage classes by the names that the stores give to them."""
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _known_classes(value: object) -> object:
    for name in value if isinstance(value, Mapping) else ():
        if name not in get_args(StorageClass):
            meant = closest(str(name), get_args(StorageClass))
            remedy = "use the name of the store, such as STANDARD"
            remedy = remedy if meant is None else f"did you mean {meant}?"
            raise ValueError(f"{str(name)[:80]} is no storage class; {remedy}")
    return value


class RequestPrices(PolicyModel):
    """The prices of 1,000 requests, by class. A class without a price costs nothing."""

    write: Price = 0.0
    """Requests that write files."""
    list: Price = 0.0
    """Requests for listings."""
    read: Price = 0.0
    """Requests for contents of files, or parts of them."""
    other: Price = 0.0
    """Other requests, such as those for the status of a file."""
    delete: Price = 0.0
    """Requests that delete files."""


class Prices(PolicyModel):
    """The price list, with which the verb `ledger` shows money beside units. GB are 2^30 bytes."""

    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    """The currency of all prices, such as EUR."""
    requests: RequestPrices = RequestPrices()
    """The prices of 1,000 requests."""
    gb_month: Annotated[Mapping[StorageClass, Price], BeforeValidator(_known_classes)] = Field(
        default_factory=dict
    )
    """The prices of a GB that is stored for a month, by storage class. Savings have the lowest one,
    because the classes of deleted files are not known."""
    gb_out: Price = 0.0
    """The price of a GB that is received from the store; nothing within a region of most clouds."""
    cpu_hour: Price = 0.0
    """The price of an hour of processor time."""
    spark_core_hour: Price = 0.0
    """The price of an hour of one core of Spark."""

    def by_column(self) -> Mapping[str, float]:
        """Returns the price of one unit of each column of the ledger that has a price."""
        requests = {
            f"requests_{name}": price / 1000 for name, price in self.requests.to_json().items()
        }
        return {
            **requests,
            "bytes_read": self.gb_out / (1 << 30),
            "cpu_seconds": self.cpu_hour / 3600,
            "spark_task_seconds": self.spark_core_hour / 3600,
        }
