"""An example writer for the table of events: `python write_events.py [COMMITS]`."""

import os
import sys

import pyarrow as pa
from deltalake import write_deltalake

for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    rows = pa.table({"event": [number], "name": ["click"]})
    write_deltalake(f"{os.environ['LAKE']}/events", rows, mode="append")
