"""The setting for other writers of a table. Imports nothing, so that options load without
pyarrow.
"""

from __future__ import annotations

from typing import Literal

OtherWriters = Literal["conditional_put", "spark", "none"]
"""The other writers of a table on S3: writers with conditional puts, Delta Spark, or none."""
