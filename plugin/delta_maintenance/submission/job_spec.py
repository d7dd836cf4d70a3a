"""The specification of a Spark job: one operation on one table.

`python -m delta_maintenance.spark.job --help` describes it for users.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from delta_maintenance.address import Address, CatalogName
from delta_maintenance.errors import InvalidRequestError, name_at
from delta_maintenance.operations.core.given_options import read_options
from delta_maintenance.operations.core.record import Record
from delta_maintenance.operations.core.registry import find, known, spark_operations
from delta_maintenance.submission.configuration import require_no_credentials_in_addresses

APPLICATION = Path(__file__).resolve().parent.parent / "spark" / "job.py"
"""The file to submit, the same for all operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Record):
    """One operation on one table."""

    operation: str
    """The name of an operation that runs on Spark."""
    table: str
    """An address that the driver and every executor can reach."""
    catalog_name: str | None = None
    """The name of the table in its catalog, for messages."""
    version: int | None = None
    """The version to work on; None for the latest, which operations that commit always use."""
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    """The storage options of the table's store. They may contain credentials: see `write`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of the operation's Options. The engine is Spark unless they name another."""
    report_uri: str | None = None
    """The address of a new Parquet file, outside the table, for the complete list, of which the
    Result contains the beginning. It is written with the storage options of the table.
    """
    ledger: str | None = None
    """The address of a ledger to which the job adds a row, with the storage options of the table.
    For jobs that no command, task or policy waits for: those add the row themselves.
    """
    ledger_state: str | None = None
    """The address of a state folder, for rows that cannot be added to the ledger: the next run of
    the policy with this folder delivers them. Without one, they are lost.
    """
    plan_only: bool = False
    """Return the Plan, and change nothing."""
    approved: dict[str, Any] | None = None
    """An approved plan, the JSON of a `policies.approval.ApprovedPlan`. The job plans no more than
    it allows, and is refused before the first write if its own plan differs.
    """

    def __post_init__(self) -> None:
        record = known(self.operation)
        if record is None or record.spark is None:
            names = ", ".join(operation.name for operation in spark_operations())
            raise InvalidRequestError(
                f"operation: {self.operation!r} does not run on Spark",
                remedy=f"name one of {names}",
            )
        if self.catalog_name is not None:
            CatalogName.parse(self.catalog_name)

    @classmethod
    def of(cls, operation: str, table: str, **fields: Any) -> Self:
        """Builds the specification for a table that this process knows by an address.

        `fields` are the other fields, as JSON. Raises `InvalidRequestError` for invalid ones.
        """
        return cls.from_json(
            {
                "operation": operation,
                # Drivers and executors have working directories of their own.
                "table": str(Address.parse(table).absolute()),
                "catalog_name": name_at(table),
                **fields,
            }
        )

    def write(self, path: str | os.PathLike[str]) -> str:
        """Writes the specification to a file that only this user can read; returns `@PATH`.

        Arguments are visible in the process list and in the logs of orchestrators, so a
        specification with credentials is never passed as an argument.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            json.dump(self.to_json(), file)
        return f"@{os.fspath(path)}"

    def read_options(self) -> Any:
        """Returns the Options of the operation; on Spark, unless they name another engine.

        Raises `InvalidRequestError` for options that the operation does not have.
        """
        record = find(self.operation)
        engine = {"engine": "spark"} if record.chooses_engine else {}
        return read_options(record, {**engine, **self.options})


def require_no_credentials(spec: JobSpec) -> None:
    """Raises `InvalidRequestError` for addresses with credentials, and for storage options that are
    secret or unknown.

    For specifications that become arguments or documents, which other users may read.
    """
    options_by_name = {f"the option {name}": value for name, value in spec.options.items()}
    addresses = {
        "the report": spec.report_uri,
        "the ledger": spec.ledger,
        "the state folder": spec.ledger_state,
    }
    require_no_credentials_in_addresses({**options_by_name, **addresses})
    # Imported here because it loads the clients of object stores.
    from delta_maintenance.storage.options import parse_options

    options = parse_options(spec.table, spec.storage_options)
    secret = None
    if options is not None:
        secret = next((name for name, value in options.secrets().items() if value), None)
    elif spec.storage_options:
        secret = next(iter(spec.storage_options))
    if secret is not None:
        raise InvalidRequestError(
            f"the storage option {secret} is a secret, which other users could read",
            table=spec.table,
            remedy="give the machines of the job an identity or environment of their own",
        )
