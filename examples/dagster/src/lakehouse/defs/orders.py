"""A table that Dagster itself writes. Its maintenance never materialises it."""

import os

import dagster as dg
import pyarrow as pa
from deltalake import write_deltalake


@dg.asset(key=["lake", "orders"], kinds={"delta"}, description="One row with each run.")
def orders(context: dg.AssetExecutionContext) -> None:
    row = pa.table({"run": [context.run_id], "amount": [1.0]})
    write_deltalake(f"{os.environ['LAKE']}/orders", row, mode="append")
