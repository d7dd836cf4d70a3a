"""An API server of Airflow with the health page, and browser sessions."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from delta_maintenance.policies.assessments import AssessmentStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Page


@dataclass
class Server:
    """A running API server with many assessed tables, and a user who may sign in."""

    address: str
    store: AssessmentStore
    token: str

    def ask(self, path: str) -> Any:
        """Returns the answer of Airflow's own API."""
        request = Request(
            f"{self.address}/api/v2{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        with urlopen(request) as response:
            return json.load(response)


def signed_in(address: str, user: str = "somebody") -> str:
    request = Request(
        f"{address}/auth/token",
        data=json.dumps({"username": user, "password": "secret"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request) as response:
        token: str = json.load(response)["access_token"]
    return token


def eventually(
    action: Callable[[], str], process: subprocess.Popen[bytes], log: Path, *, seconds: int = 480
) -> str:
    """Repeats an action until it succeeds, and returns its result."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Airflow did not start: {log.read_text()[-3000:]}") from None
            time.sleep(0.5)


@contextmanager
def visitor(
    browser: Browser, server: Server, *, theme: str = "light", refused: int | None = None
) -> Iterator[Page]:
    """Opens a page as a signed-in user; fails if the browser reports a problem.

    `refused` is an HTTP status that exactly one answer must have.
    """
    complaints: list[str] = []
    width, height = 1600, 950
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    )
    context.add_cookies([{"name": "_token", "value": server.token, "url": server.address}])
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type == "error" or "Content Security Policy" in message.text
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((server.address, "data:", "blob:"))
            else complaints.append(f"asked for {request.url}")
        ),
    )
    yield page
    context.close()
    expected = [text for text in complaints if f"status of {refused}" in text]
    assert complaints == expected
    assert (refused is not None) == bool(expected)


def framed(page: Page) -> Frame:
    """Returns our page within Airflow's page."""
    page.wait_for_selector("iframe")
    frame = page.frame_locator("iframe").locator("h1").element_handle().owner_frame()
    assert frame is not None
    return frame


def picture(page: Page, name: str, **options: Any) -> None:
    folder = os.environ.get("DELTA_MAINTENANCE_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{name}.png", **options)
