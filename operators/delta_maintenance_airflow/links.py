"""Links from tasks to the Spark applications that they started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class SparkUILink(BaseOperatorLink):
    """To the user interface of the Spark application; there as soon as the driver has told it."""

    name = "Spark UI"

    @property
    def xcom_key(self) -> str:
        return "delta_spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # Asked for once more when the task ends, in place of what was pushed while it ran.
        from airflow.sdk.execution_time.xcom import XCom

        address = XCom.get_value(ti_key=ti_key, key=self.xcom_key)
        return address if isinstance(address, str) else ""
