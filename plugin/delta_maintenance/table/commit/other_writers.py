"""The setting for other writers of a table. Light, so that options load without pyarrow."""

from __future__ import annotations

from typing import Literal

OtherWriters = Literal["conditional_put", "spark", "none"]
"""Who else commits to a table on S3: writers that put conditionally, Delta Spark, or nobody."""
