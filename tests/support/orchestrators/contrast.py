"""Texts of a page that are hard to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

_POOR = """() => {
    const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
    const over = (top, below) => {
        const a = top[3] ?? 1;
        return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a));
    };
    const light = (c) => {
        const [r, g, b] = c.map((v) => {
            const s = v / 255;
            return s <= 0.03928 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (e) => {
        const layers = [];
        for (let at = e; at; at = at.parentElement)
            layers.unshift(parse(getComputedStyle(at).backgroundColor));
        return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const poor = [];
    for (const e of document.querySelectorAll("main *")) {
        const texts = [...e.childNodes].filter((n) => n.nodeType === 3);
        const shown = texts.some((n) => n.data.trim());
        if (!shown || !e.getClientRects().length || e.closest("svg")) continue;
        const below = ground(e);
        const text = over(parse(getComputedStyle(e).color), below);
        const [a, b] = [light(text), light(below)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) poor.push(`${e.className}: ${ratio.toFixed(2)}`);
    }
    return [...new Set(poor)];
}
"""


def poor_contrast(page: Page) -> list[str]:
    """Returns the classes of visible texts whose contrast is below 4.5 to 1, and the contrast."""
    found: list[str] = page.evaluate(_POOR)
    return found
