"""A Spark application in platform-independent terms.

`submission.spark_submit` converts it to a command, and each module of `submission.exporters` to the
document of one platform.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from delta_maintenance.address import Address
from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.operations.core.record import Record
from delta_maintenance.submission.configuration import (
    checked_conf,
    checked_environment,
    require_no_credentials_in_addresses,
)
from delta_maintenance.submission.job_spec import APPLICATION, JobSpec, require_no_credentials


def with_value(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that have a value; platforms reject empty ones."""
    return {name: value for name, value in fields.items() if value}


Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]*[kmgtKMGT]b?$")]
"""In Spark's notation: `4g`, `512m`."""
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(Record):
    """How the driver and the executors get this library and its dependencies."""

    application: str = os.fspath(APPLICATION)
    """The address of `job.py`, which the driver's machine or the platform can reach."""
    py_files: tuple[str, ...] = ()
    """Addresses of ZIP files for the Python path; see `submission.library`."""
    archives: tuple[str, ...] = ()
    """Addresses of packed environments, each with `#` and the folder that it is unpacked in."""
    python: str | None = None
    """The Python of driver and executors, such as `./environment/bin/python` of an archive."""
    image: str | None = None
    """The container image, if the platform runs containers."""

    def conf(self) -> dict[str, str]:
        """The Spark properties that follow from the code."""
        return {} if self.python is None else {"spark.pyspark.python": self.python}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(Record):
    """The resources of a job. None leaves the decision to the platform."""

    driver_cores: Count | None = None
    driver_memory: Memory | None = None
    executors: Count | None = None
    executor_cores: Count | None = None
    executor_memory: Memory | None = None
    executor_memory_overhead: Memory | None = None
    """Memory outside of the JVM, for the Python workers, which need most of the memory."""

    def conf(self) -> dict[str, str]:
        """The Spark properties that follow from the resources."""
        properties = {
            "spark.driver.cores": self.driver_cores,
            "spark.driver.memory": self.driver_memory,
            "spark.executor.instances": self.executors,
            "spark.executor.cores": self.executor_cores,
            "spark.executor.memory": self.executor_memory,
            "spark.executor.memoryOverhead": self.executor_memory_overhead,
        }
        return {name: str(value) for name, value in properties.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission(Record):
    """One Spark application: the job, with all information for a platform."""

    name: str
    arguments: tuple[str, ...]
    code: Code
    conf: dict[str, str] = field(default_factory=dict)
    """Spark properties in addition to those that follow from code and resources."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of driver and executors; none of them secret."""
    resources: Resources = Resources()

    @classmethod
    def of(
        cls,
        spec: JobSpec,
        *,
        report: str,
        code: Code,
        conf: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        resources: Resources | None = None,
    ) -> Submission:
        """The submission of a job to a cluster, whose driver is not on this machine.

        Raises `InvalidRequestError` for addresses that the cluster cannot reach, for forbidden
        properties and variables, and for credentials, because other users can read a submission.
        """
        for role, address in (
            ("table", spec.table),
            ("ledger", spec.ledger),
            ("state folder", spec.ledger_state),
            ("report", report),
            ("application", code.application),
        ):
            if address is not None and Address.parse(address).is_local:
                raise InvalidRequestError(
                    f"the {role} {address} is a path on this machine",
                    remedy="give an address that the cluster reaches, such as s3://BUCKET/PATH",
                )
        for address in (*code.py_files, *code.archives):
            require_no_credentials_in_addresses({"the address of code": address})
        require_no_credentials(spec)
        # Report invalid options before a job is submitted.
        spec.read_options()
        fields = with_value(spec.to_json())
        return cls(
            name=f"delta-maintenance {spec.operation}",
            arguments=("--spec", json.dumps(fields), "--report", report),
            code=code,
            conf=checked_conf(conf or {}),
            environment=checked_environment(environment or {}),
            resources=resources or Resources(),
        )

    def properties(self, *, driver_environment: str | None = None) -> dict[str, str]:
        """All values that are properties of Spark, without the addresses of the code.

        `driver_environment` is the prefix of the platform's properties for the environment of the
        driver.
        """
        variables = {f"spark.executorEnv.{name}": text for name, text in self.environment.items()}
        if driver_environment is not None:
            variables |= {
                f"{driver_environment}{name}": text for name, text in self.environment.items()
            }
        return {**self.conf, **self.resources.conf(), **self.code.conf(), **variables}
