"""The filter of the health page, while the server is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def type_during_an_answer(page: Page, first: str, later: str) -> None:
    """Types some letters into the filter, and others while the server answers the first."""
    search = page.get_by_role("searchbox")

    def answer(route: Route) -> None:
        search.press_sequentially(later)
        route.continue_()

    page.route(lambda url: _filter_of(url) == first, answer, times=1)
    search.press_sequentially(first)
    page.wait_for_url(lambda url: _filter_of(url) == first + later)
    assert search.input_value() == first + later


def _filter_of(url: str) -> str | None:
    return next(iter(parse_qs(urlsplit(url).query).get("q", ())), None)
