"""Spark properties and environment variables that a job may set, and those that it may not.

Settings in a policy, an operator or a form come from users who may start maintenance, but may not
run arbitrary programs as the worker. Therefore, settings that make Spark load code are reserved for
the administrators of Spark (`spark-defaults.conf`, the image, the arguments for that), and secrets
are allowed neither on a command line nor in a document that other users can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from delta_maintenance.errors import InvalidRequestError
from delta_maintenance.redaction import holds_credentials

_SECRET = re.compile(
    r"secret|passw|token|credential|access[._-]?key|account[._-]?key|api[._-]?key|private"
    r"|keytab|signature|[._-]sas\b|sas[._-]",
    re.IGNORECASE,
)
_REFERENCES = (
    "spark.kubernetes.driver.secrets.",
    "spark.kubernetes.executor.secrets.",
    "spark.kubernetes.driver.secretKeyRef.",
    "spark.kubernetes.executor.secretKeyRef.",
)
"""These properties only name secrets that Kubernetes stores."""

_OWN = {
    "spark.app.name": "the job has a name of its own",
    "spark.master": "name it in the connection or with --master",
    "spark.remote": "name it in the connection or with --master",
    "spark.submit.deployMode": "name it in the connection",
    "spark.submit.pyFiles": "name them as py_files",
    "spark.archives": "name them as archives",
    "spark.pyspark.python": "name it as python",
    "spark.pyspark.driver.python": "name it as python",
    "spark.kubernetes.container.image": "name it as image",
    "spark.kubernetes.driver.container.image": "name it as image",
    "spark.kubernetes.executor.container.image": "name it as image",
}
_CODE = (
    "spark.jars",
    "spark.plugins",
    "spark.extraListeners",
    "spark.driver.extraJavaOptions",
    "spark.driver.defaultJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.executor.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.executor.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.executor.extraLibraryPath",
    "spark.driver.userClassPathFirst",
    "spark.executor.userClassPathFirst",
    "spark.sql.extensions",
    "spark.sql.catalog.",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.",
    "spark.serializer",
    "spark.yarn.am.extraJavaOptions",
    "spark.yarn.am.extraLibraryPath",
    "spark.yarn.jars",
    "spark.yarn.archive",
    "spark.yarn.dist.",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.executor.podTemplateFile",
    "spark.kubernetes.submission.",
)
_ENVIRONMENT = (
    "spark.executorEnv.",
    "spark.yarn.appMasterEnv.",
    "spark.kubernetes.driverEnv.",
    "spark.emr-serverless.driverEnv.",
    "spark.dataproc.driverEnv.",
)

_ALLOWED = (
    # Resources.
    "spark.cores.max",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor",
    "spark.dynamicAllocation.",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.executor.pyspark.memory",
    "spark.memory.",
    "spark.python.worker.",
    "spark.scheduler.",
    "spark.task.",
    # Behaviour of the job.
    "spark.decommission.",
    "spark.default.parallelism",
    "spark.excludeOnFailure.",
    "spark.io.compression.",
    "spark.locality.wait",
    "spark.log.level",
    "spark.shuffle.",
    "spark.speculation",
    "spark.sql.adaptive.",
    "spark.sql.ansi.enabled",
    "spark.sql.execution.arrow.",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.storage.decommission.",
    # Connections and user interface.
    "spark.authenticate",
    "spark.blockManager.port",
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.driver.port",
    "spark.eventLog.",
    "spark.executor.heartbeatInterval",
    "spark.network.",
    "spark.port.maxRetries",
    "spark.rpc.",
    "spark.ui.enabled",
    "spark.ui.port",
    "spark.ui.reverseProxy",
    "spark.ui.reverseProxyUrl",
    "spark.ui.showConsoleProgress",
    # Location.
    "spark.dataproc.",
    "spark.emr-serverless.",
    "spark.hadoop.fs.",
    "spark.kubernetes.",
    "spark.yarn.",
)
"""A property, or a prefix of properties if it ends in a dot."""


def checked_conf(conf: Mapping[str, object]) -> dict[str, str]:
    """Returns the properties as strings. Raises `InvalidRequestError` for the first
    forbidden one.
    """
    for name in conf:
        problem = _problem(name)
        if problem is not None:
            raise InvalidRequestError(f"the Spark property {name} {problem[0]}", remedy=problem[1])
    require_no_credentials_in_addresses({f"the Spark property {name}": conf[name] for name in conf})
    return {name: _text(value) for name, value in conf.items()}


def require_no_secrets(conf: Mapping[str, object]) -> None:
    """Raises `InvalidRequestError` for a property that would put a secret on a command line."""
    for name in conf:
        if _is_secret(name):
            raise InvalidRequestError(
                f"the Spark property {name} is a secret, which a command line would show",
                remedy=_SECRET_REMEDY,
            )
    require_no_credentials_in_addresses({f"the Spark property {name}": conf[name] for name in conf})


def require_no_credentials_in_addresses(values: Mapping[str, object]) -> None:
    """Raises `InvalidRequestError` for the first value that is an address with credentials."""
    for value_name, value in values.items():
        if isinstance(value, str) and holds_credentials(value):
            raise InvalidRequestError(
                f"{value_name} is an address with credentials, which other users could read",
                remedy="give the plain address, and give the machines of the job a role",
            )


def checked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Checks the environment variables of driver and executors, which other users can read."""
    for name in environment:
        if not _VARIABLE.fullmatch(name):
            raise InvalidRequestError(
                f"{name!r} is not a name of an environment variable", remedy="correct the name"
            )
        if _SECRET.search(name):
            raise InvalidRequestError(
                f"the environment variable {name} is a secret, which other users could read",
                remedy=_SECRET_REMEDY,
            )
        if name.startswith(_LOADERS):
            raise InvalidRequestError(
                f"the environment variable {name} makes the job load other code",
                remedy="put it into the image, or into the environment of the workers",
            )
    require_no_credentials_in_addresses(
        {f"the environment variable {name}": value for name, value in environment.items()}
    )
    return dict(environment)


def _problem(name: str) -> tuple[str, str] | None:
    """Returns the problem with a property, and the alternative."""
    if _is_secret(name):
        return "is a secret, which other users could read", _SECRET_REMEDY
    if name in _OWN:
        return "must not be set here", _OWN[name]
    if _begins(name, _CODE):
        return (
            "makes Spark load code or start programs",
            "set it in spark-defaults.conf, which the administrators of Spark control",
        )
    if name.startswith(_ENVIRONMENT):
        return "sets an environment variable", "name it in the environment of the job"
    if not _begins(name, _ALLOWED):
        return (
            "is not among those that may be set here",
            "set it in spark-defaults.conf, which the administrators of Spark control",
        )
    return None


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not name.startswith(_REFERENCES)


def _begins(name: str, prefixes: tuple[str, ...]) -> bool:
    # `spark.speculation` includes `spark.speculation.interval`.
    return any(
        name == item or name.startswith(item if item.endswith(".") else f"{item}.")
        for item in prefixes
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOADERS = ("LD_", "DYLD_", "PYTHON", "PYSPARK_", "SPARK_", "JAVA_", "JDK_", "CLASSPATH", "PATH")
_SECRET_REMEDY = (
    "put it into spark-defaults.conf or the environment of the machines, or better give them a role"
)
