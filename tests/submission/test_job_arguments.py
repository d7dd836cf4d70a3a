"""The arguments of `job.py`, which starts no Spark for a specification that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delta_maintenance.spark import job
from tests.support.submissions import ARCHIVE, EXECUTORS, GLUE, submission

OWN = ("true", "--job-bookmark-option", "job-bookmark-disable", "--JOB_ID", "j_1", "--JOB_RUN_ID")


def test_glue_adds_arguments_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    run = replace(GLUE, additional_python_modules=None)
    given = run.document(submission(ARCHIVE, EXECUTORS, environment={}))["Arguments"]
    given |= {"--spec": "{}", "--report": "report.json"}
    words = [word for item in given.items() for word in item if item[0] != "--report"]
    assert job.main([*OWN, "jr_1", "--JOB_NAME", "delta-maintenance", *words]) == 2
    assert "operation" in capsys.readouterr().out


def test_other_platforms_pass_no_unknown_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        job.main(["--spec", "{}", "--reprot", "report.json"])
    assert "--reprot" in capsys.readouterr().err
