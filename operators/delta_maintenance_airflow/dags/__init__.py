"""Ready-to-run Dags for the tables of a policy. One line of a Dag file brings them all:

from delta_maintenance_airflow.dags import delta_maintenance_dags

delta_maintenance_dags(policy="/opt/airflow/policy.yaml")
"""

from delta_maintenance_airflow.dags.factory import delta_maintenance_dags
from delta_maintenance_airflow.dags.scheduled import RunLimits

__all__ = ["RunLimits", "delta_maintenance_dags"]
