"""`pytest --oracle`: whether tests use the recorded answers of Delta Spark."""

from __future__ import annotations

import pytest

from tests.support.suite.play import PLAY

CHOICES = {
    "sample": "use recorded answers; the first test of each module asks Delta Spark",
    "recorded": "use recorded answers; Delta Spark is asked only what was never recorded",
    "live": "ask Delta Spark, and fail if an answer differs from the recorded one",
    "record": "ask Delta Spark what was never recorded, and record the answers",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--oracle",
        choices=CHOICES,
        default="live" if PLAY == "all" else "sample",
        help="; ".join(f"{name}: {what}" for name, what in CHOICES.items()),
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "recorded: uses recorded answers of Delta Spark")
