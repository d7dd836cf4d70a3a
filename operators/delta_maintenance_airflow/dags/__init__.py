"""Ready-to-run Dags for the tables of a policy. A Dag file with one call makes all of them:

from delta_maintenance_airflow.dags import delta_maintenance_dags

delta_maintenance_dags(policy="/opt/airflow/policy.yaml")
"""

from delta_maintenance_airflow.dags.factory import DagIds, delta_maintenance_dags
from delta_maintenance_airflow.dags.scheduled import RunLimits

__all__ = ["DagIds", "RunLimits", "delta_maintenance_dags"]
