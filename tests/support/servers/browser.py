"""The browser of this machine, in headless mode."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Starts a Chromium from PATH; skips loudly if there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"NO BROWSER: none of {', '.join(_NAMES)} is on PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Containers have no user namespaces for the sandbox.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
