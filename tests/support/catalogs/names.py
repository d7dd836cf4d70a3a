"""Names of tables that every kind of catalog must list and find."""

from __future__ import annotations

AWKWARD = (
    *("a.b", "..a", "two words", " ", "100%", "%2E", "a%2Eb", "zażółć 表", "n" * 255, "表" * 255),
    *("a:b@c", "a/b?c#d*e", "it's", '"'),
)
"""Parts of names, each of which is also a name of a namespace or a catalog."""
