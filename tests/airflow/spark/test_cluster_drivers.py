"""Drivers on a cluster: applications on YARN, and servers of Spark Connect."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_maintenance_airflow.compat import AirflowException, AirflowFailException
from delta_maintenance_airflow.spark.submission import SparkSubmission
from tests.support.orchestrators.airflow_versions import since_3_3
from tests.support.orchestrators.fake_spark import (
    DONE,
    RESULT,
    SUBMITTED,
    FakeSpark,
    ResourceManager,
    States,
    reports,
)
from tests.support.orchestrators.spark_tasks import operator

pytest.importorskip("airflow.providers.apache.spark", reason="NO SPARK PROVIDER")
# The provider leaves the pipe from spark-submit to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


def context_with(states: States, context: dict[str, Any]) -> dict[str, Any]:
    context["ti"].stats_tags = {}
    return {**context, "task_state_store": states}


# Drivers on a cluster


@since_3_3
def test_an_application_on_yarn_is_followed_and_then_forgotten(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    yarn.answers[:] = [("FINISHED", "SUCCEEDED")]
    spark.acts(*SUBMITTED, reports(DONE))
    states = States()
    task = operator(report_folder=str(tmp_path / "reports"))
    assert task.execute(context_with(states, task_context))["status"] == "written"
    words = spark.starts[0]["words"]
    assert "spark.yarn.submit.waitAppCompletion=false" in words
    assert "--spec" in words and not words[words.index("--spec") + 1].startswith("@")
    assert states == {}
    task_context["ti"].xcom_push.assert_called_once_with(
        key="delta_spark_ui", value="http://manager:8088/proxy/application_1_0001/"
    )
    # Cleared, it runs again.
    task_context["ti"].max_tries += 1
    task.execute(context_with(states, task_context))
    assert len(spark.starts) == 2


@since_3_3
def test_a_later_try_continues_an_application_that_is_still_running(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    states = States()
    task = operator(report_folder=str(folder))

    class Killed(BaseException):
        """Simulates SIGKILL within this process."""

    class Dying(States):
        def set(self, key: str, value: Any, **_: Any) -> None:
            states[key] = value
            raise Killed

    spark.acts(*SUBMITTED)
    with pytest.MonkeyPatch.context() as patch:
        # Dead, it ends nothing.
        patch.setattr(SparkSubmission, "kill", lambda _: None)
        with pytest.raises(Killed):
            task.execute(context_with(Dying(), task_context))
    assert list(states.values()) == ["application_1_0001"]
    [words] = [start["words"] for start in spark.starts]
    yarn.answers[:] = [("RUNNING", "UNDEFINED"), ("FINISHED", "SUCCEEDED")]
    first_answer = yarn.do_GET

    def finish(self: ResourceManager) -> None:
        if len(self.requests) == 1:
            Path(words[words.index("--report") + 1]).write_text(json.dumps(DONE))
        first_answer(self)

    yarn.do_GET = finish
    outcome = task.execute(context_with(states, task_context))
    assert outcome["status"] == "written"
    assert (len(spark.starts), states) == (1, {})


@since_3_3
def test_a_cleared_task_does_not_continue_the_earlier_application(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    states = States()
    task = operator(report_folder=str(tmp_path / "reports"))
    yarn.answers[:] = [("FINISHED", "FAILED")]
    spark.acts(*SUBMITTED)
    with pytest.raises(AirflowException):
        task.execute(context_with(states, task_context))
    # The state of the first application is not requested.
    yarn.requests.clear()
    yarn.answers[:] = [("FINISHED", "SUCCEEDED")]
    spark.acts(*SUBMITTED, reports(DONE))
    task_context["ti"].max_tries += 1
    assert task.execute(context_with(states, task_context))["status"] == "written"
    assert (len(spark.starts), len(yarn.requests)) == (2, 1)


@since_3_3
def test_a_failed_application_is_submitted_again(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    states = States()
    task = operator(report_folder=str(tmp_path / "reports"))
    yarn.answers[:] = [("FINISHED", "FAILED")]
    spark.acts(*SUBMITTED)
    with pytest.raises(AirflowException, match="application_1_0001"):
        task.execute(context_with(states, task_context))
    assert list(states.values()) == ["application_1_0001"]
    yarn.answers[:] = [("FINISHED", "FAILED"), ("FINISHED", "SUCCEEDED")]
    spark.acts(*SUBMITTED, reports(DONE))
    assert task.execute(context_with(states, task_context))["status"] == "written"
    assert (len(spark.starts), states) == (2, {})


@since_3_3
def test_a_kill_ends_the_application_on_yarn(
    spark: FakeSpark, yarn: type[ResourceManager], task_context: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    task = operator(report_folder=str(tmp_path / "reports"))
    spark.acts(*SUBMITTED)
    yarn.answers[:] = [("FINISHED", "KILLED")]
    answer = yarn.do_GET

    def kill_then_answer(self: ResourceManager) -> None:
        task.on_kill()
        answer(self)

    yarn.do_GET = kill_then_answer
    with pytest.raises(AirflowException):
        task.execute(context_with(States(), task_context))
    assert any(line.startswith("PUT") and "application_1_0001" in line for line in yarn.requests)


def test_without_task_states_an_application_on_yarn_is_waited_for(
    spark: FakeSpark,
    yarn: type[ResourceManager],
    task_context: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As before Airflow 3.3."""
    monkeypatch.setattr("delta_maintenance_airflow.spark.provider.HAS_TASK_STATE", False)
    (tmp_path / "reports").mkdir()
    spark.acts(*SUBMITTED, reports(DONE))
    task = operator(report_folder=str(tmp_path / "reports"))
    assert task.execute(task_context)["status"] == "written"
    assert "spark.yarn.submit.waitAppCompletion=false" not in spark.starts[0]["words"]
    assert yarn.requests == []


class FakeSession:
    """A session on a server; its jobs go on until they are interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()

    def interruptAll(self) -> list[str]:
        self.interrupted.set()
        return []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    connection = {"conn_type": "spark_connect", "host": "sc://spark", "port": 15002}
    connection |= {"password": "the-token"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    session = FakeSession()

    @contextlib.contextmanager
    def open_connection(address: str) -> Iterator[FakeSession]:
        assert address == "sc://spark:15002/;token=the-token"
        yield session

    monkeypatch.setattr("delta_maintenance.spark.session.open_connection", open_connection)
    return session


# Spark Connect


def test_a_connection_to_a_server_runs_the_job_in_the_task(
    server: FakeSession, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(spec: Any, session: FakeSession) -> dict[str, Any]:
        assert (spec.operation, session) == ("checkpoint", server)
        return RESULT

    monkeypatch.setattr("delta_maintenance.spark.job.run", run)
    assert operator().execute(task_context)["status"] == "written"
    for more in ({"spark_conf": {"spark.task.cpus": 1}}, {"spark_code": {"python": "x"}}):
        with pytest.raises(AirflowFailException, match="leave spark_conf"):
            operator().__class__(task_id="t", table_uri="s3://l/e", engine="spark", **more).execute(
                task_context
            )


def test_a_kill_interrupts_the_server_and_its_error_may_be_retried(
    server: FakeSession, task_context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()

    def run(spec: Any, session: FakeSession) -> dict[str, Any]:
        started.set()
        session.interrupted.wait(60)
        raise RuntimeError("[OPERATION_CANCELED] it was ended\n\tat java.lang.Thread.run")

    monkeypatch.setattr("delta_maintenance.spark.job.run", run)
    task = operator()
    killer = threading.Thread(target=lambda: (started.wait(300), task.on_kill()))
    killer.start()
    with pytest.raises(Exception, match="RuntimeError: .OPERATION_CANCELED. it was") as caught:
        task.execute(task_context)
    killer.join()
    assert server.interrupted.is_set()
    assert not isinstance(caught.value, AirflowFailException)
    # Over, it ends nothing.
    task.on_kill()
