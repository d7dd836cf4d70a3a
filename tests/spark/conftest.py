"""One Spark session for all tests of this folder, on two cores of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.servers.spark_session import local_session

HERE = Path(__file__).parent
JAVA = os.path.join(os.environ["JAVA_HOME"], "bin/java") if "JAVA_HOME" in os.environ else "java"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What PySpark itself warns of is no failure of ours."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:PySpark does not yet fully support pandas:FutureWarning"
                )
            )


@pytest.fixture(scope="session")
def java() -> None:
    """Skips where there is no Java."""
    if shutil.which(JAVA) is None:
        pytest.skip("NO JAVA: set JAVA_HOME to Java 17 or newer")


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """See `local_session`."""
    with local_session(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with everything that this one has, but for editable installs: ours is one."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(ours))
    return folder / "bin" / "python"
