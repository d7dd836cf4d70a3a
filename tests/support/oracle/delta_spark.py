"""Delta Spark as an oracle: a separate Java Spark session that tests query about tables.

The session has its own JVM and is driven only through its gateway, so that other tests of the
process can have a PySpark session.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from tests.support.servers.endings import end_gateway

DELTA_SPARK = os.environ.get("DELTA_MAINTENANCE_DELTA_SPARK", "io.delta:delta-spark_4.2_2.13:4.4.0")
DELTA_RELEASE = DELTA_SPARK.rpartition(":")[2].rpartition(".")[0]
"""The Maven coordinates of the oracle."""

BROUGHT_BY_SPARK = (
    "com.fasterxml.jackson.core",
    "com.fasterxml.jackson.datatype",
    "com.github.luben",
    "commons-codec",
    "commons-logging",
    "io.airlift",
    "io.netty",
    "org.apache.hadoop",
    "org.apache.httpcomponents",
    "org.apache.logging.log4j",
    "org.apache.parquet",
    "org.roaringbitmap",
    "org.slf4j",
    "org.xerial.snappy",
)

_RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
_STREAMING = "org.apache.spark.sql.execution.streaming"
if _RELEASE >= (4, 1):
    _STREAMING += ".checkpointing"

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    # Many small plans run once: compiling each of them costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # The session lasts for minutes, so the optimizing compiler that tools/quick_java.py turns off
    # is worth its cost: 30 tests took 294 s of processor time instead of 360. It compiles only
    # frequently executed code: with Java's default threshold, 14 tests took 105 s instead of 91.
    # Most objects are short-lived: with Java's small young generation, there are 2,000 collections.
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -Xms1g -Xmn600m "
        "-XX:TieredStopAtLevel=4 -XX:CompileThresholdScaling=4 -Duser.timezone=UTC"
    ),
    # By default, every rename of a commit or a checksum starts two `readlink` processes.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A failing checkpoint must fail its test instead of being ignored.
    "spark.databricks.delta.checkpoint.exceptionThrowing.enabled": "true",
}


# PySpark has no type annotations for this function.
launch: Any = launch_gateway


class OracleUnavailable(Exception):
    """Delta Spark is not available on this machine; the message says why."""


class DeltaSpark:
    """A running Delta Spark. `close` ends its JVM."""

    def __init__(
        self,
        *,
        jars: Path,
        scratch: Path,
        settings: Mapping[str, str] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        """Starts Spark, with its jars in `jars`, and its log and warehouse in `scratch`.

        `settings` come on top of `SETTINGS`, and `packages` beside Delta Spark. Raises
        `OracleUnavailable` if the jars cannot be downloaded.
        """
        log = scratch / "spark.log"
        conf = SparkConf(loadDefaults=False)
        conf.set("spark.jars.packages", ",".join((DELTA_SPARK, *packages)))
        conf.setAll(list({**SETTINGS, **(settings or {})}.items()))
        conf.set("spark.jars.excludes", ",".join(f"{group}:*" for group in BROUGHT_BY_SPARK))
        conf.set("spark.jars.ivy", str(jars))
        conf.set("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        self._gateway = _launched(conf, log)
        if self._gateway is None:
            text = log.read_text(errors="replace")
            missing = re.search(r"(?:unresolved dependency|download failed): [^\]\n]+", text)
            if missing is None:
                raise RuntimeError(f"Spark does not start:\n{text[-3000:]}")
            raise OracleUnavailable(f"its jars cannot be fetched: {missing.group()}")
        self.jvm: Any = self._gateway.jvm
        sql = self.jvm.org.apache.spark.sql
        sessions = sql.SparkSession if _RELEASE < (4, 0) else sql.classic.SparkSession
        self._spark = sessions.builder().getOrCreate()
        self._delta = self.jvm.org.apache.spark.sql.delta

    def close(self) -> None:
        """Stops Spark, and kills its JVM if it does not end."""
        end_gateway(self._gateway, stop=self._spark.stop)

    def jars(self) -> str:
        """All jars that it was started with, for `spark.jars` of a session that resolves none."""
        return str(self._spark.conf().get("spark.jars"))

    def kill(self) -> None:
        """Kills its JVM at once, as `kill -9` does."""
        self._gateway.proc.kill()

    def discard(self) -> None:
        """Frees what is left of a session whose JVM was killed; `close` is not needed then."""
        self.kill()
        self._gateway.proc.wait()
        with suppress(Exception):
            self._gateway.shutdown()
        self._gateway.proc.stdin.close()

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """Changes a session setting for the duration of a block."""
        self.configure(name, value)
        try:
            yield
        finally:
            self.configure(name, None)

    def configure(self, name: str, value: str | None) -> None:
        """Changes a session setting; None restores its default."""
        if value is None:
            self._spark.conf().unset(name)
        else:
            self._spark.conf().set(name, value)

    def jvm_session(self) -> Any:
        """Spark's own session, for callers that need more of them."""
        return self._spark

    def sql(self, statement: str) -> None:
        """Runs a statement for its effect."""
        self._spark.sql(statement)

    def write(
        self,
        path: Path,
        query: str,
        *,
        mode: str = "append",
        partition_by: Sequence[str] = (),
        **options: str,
    ) -> None:
        """Writes the rows of a query through the DataFrame writer, with its options."""
        writer = self._spark.sql(query).write().format("delta").mode(mode).options(options)
        if partition_by:
            writer = writer.partitionBy(self._strings(*partition_by))
        writer.save(str(path))

    def rows(self, query: str) -> list[str]:
        """Returns the rows of a query as JSON texts, sorted."""
        return sorted(self._json_lines(self._spark.sql(query)))

    def history(self, path: Path) -> list[dict[str, Any]]:
        """`version`, `ms` (since 1970-01-01 UTC) and `operation` of every commit, newest first."""
        history = self._spark.sql(f"DESCRIBE HISTORY delta.`{path}`").selectExpr(
            self._strings("version", "unix_millis(timestamp) AS ms", "operation")
        )
        return [decode(line) for line in self._json_lines(history)]

    def data_files(self, path: Path, predicate: str) -> set[str]:
        """Returns the names of the data files that Spark cannot skip for a predicate."""
        found = self._spark.sql(f"SELECT * FROM delta.`{path}` WHERE {predicate}").inputFiles()
        return {str(file).rpartition("/")[2] for file in found}

    def supports(self, feature: str) -> bool:
        """Whether this release knows a table feature with that name."""
        return bool(self._delta.TableFeature.featureNameToFeature(feature).isDefined())

    def forget(self) -> None:
        """Drops every cached snapshot, so that the next access to a table reads its log."""
        self._delta.DeltaLog.clearCache()

    def snapshot(self, path: Path, version: int | None = None) -> Any:
        """Returns Delta's own snapshot object, of the latest version by default."""
        none = self.jvm.scala.Option.empty()
        log = self._delta.DeltaLog.forTable(self._spark, str(path))
        if version is None:
            return log.update(False, none, none)
        return log.getSnapshotAt(version, none, none, False)

    def actions(self, snapshot: Any) -> list[dict[str, Any]]:
        """Returns every action of the reconciled state, in the form of the log."""
        return [decode(line) for line in self.state_lines(snapshot)]

    def state_lines(self, snapshot: Any) -> list[str]:
        """Returns every action of the reconciled state as JSON."""
        return self._json_lines(snapshot.stateDF())

    def replay_lines(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yields the actions at every version as JSON, by Delta Spark's own replay of the commits.

        Snapshots use the same class for reconciliation, so the states are equal at a fraction of
        the cost, except that nothing expires here.
        """
        none = self.jvm.scala.Option.empty()
        log = self._delta.DeltaLog.forTable(self._spark, str(path))
        state = self._delta.actions.InMemoryLogReplay(none, none)
        changes = log.getChanges(0, none, False)
        while changes.hasNext():
            commit = changes.next()
            state.append(commit._1(), commit._2().iterator())
            standing = state.checkpoint()
            actions = []
            while standing.hasNext():
                actions.append(str(standing.next().json()))
            yield commit._1(), actions

    def kernel_files(self, path: Path) -> set[tuple[str, str | None]]:
        """Returns the live files by Delta's kernel for Java, which has a log replay of its own.

        Each file is its name and the unique ID of its deletion vector.
        """
        kernel = self.jvm.io.delta.kernel
        read = kernel.internal.InternalScanFileUtils
        configuration = self._spark.sessionState().newHadoopConf()
        engine = kernel.defaults.engine.DefaultEngine.create(configuration)
        snapshot = kernel.Table.forPath(engine, str(path)).getLatestSnapshot(engine)
        batches, files = snapshot.getScanBuilder().build().getScanFiles(engine), set()
        while batches.hasNext():
            rows = batches.next().getRows()
            while rows.hasNext():
                row = rows.next()
                vector = read.getDeletionVectorDescriptorFromRow(row)
                name = str(read.getAddFileStatus(row).getPath()).rpartition("/")[2]
                files.add((name, None if vector is None else str(vector.getUniqueId())))
        return files

    def checkpoint(self, path: Path) -> None:
        """Lets Delta Spark write a checkpoint of the latest version."""
        snapshot = self.snapshot(path)
        snapshot.deltaLog().checkpoint(snapshot, self.jvm.scala.Option.empty())

    def clean_up(self, path: Path) -> None:
        """Let Delta Spark delete what has expired of a log, as after a checkpoint of its own."""
        self.forget()
        snapshot = self.snapshot(path)
        snapshot.deltaLog().doLogCleanup(snapshot, self.jvm.scala.Option.empty())

    def read_hint(self, text: str) -> dict[str, Any]:
        """Returns `_last_checkpoint` as parsed by Delta Spark; raises if its checksum is wrong."""
        hint = self._delta.LastCheckpointInfo.deserializeFromJson(text, True)
        v2 = hint.v2Checkpoint()
        return {
            "version": hint.version(),
            "size": hint.size(),
            "parts": not hint.parts().isEmpty(),
            "bytes": hint.sizeInBytes().get(),
            "adds": hint.numOfAddFiles().get(),
            "checksum": hint.checksum().isDefined(),
            "v2": [v2.get().path(), v2.get().sizeInBytes()] if v2.isDefined() else None,
        }

    def _strings(self, *texts: str) -> Any:
        array = self._gateway.new_array(self.jvm.java.lang.String, len(texts))
        for index, text in enumerate(texts):
            array[index] = text
        return array

    def _json_lines(self, dataset: Any) -> list[str]:
        # One call through the gateway instead of one for every row.
        text = self.jvm.java.lang.String.join("\n", dataset.toJSON().collectAsList())
        return text.split("\n") if text else []


def _launched(conf: SparkConf, log: Path) -> Any:
    """Returns the gateway to a new JVM, or None if it ended before it was ready."""
    with log.open("wb") as out, warnings.catch_warnings():
        # PySpark leaves the pipe of a JVM that did not start to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return launch(conf, {"stdout": out, "stderr": out})
        except PySparkRuntimeError:
            return None


def decode(text: str) -> Any:
    """Parses JSON without losing digits."""
    return json.loads(text, parse_float=Decimal)


def checkpoint_files(snapshot: Any) -> list[str]:
    """Returns the names of the top-level checkpoint files that Delta Spark's snapshot uses."""
    files = snapshot.logSegment().checkpointProvider().topLevelFiles()
    return sorted(files.apply(i).getPath().getName() for i in range(files.size()))
