"""The Dags for the tables of the policy that `[delta_maintenance] policy` names.

They come with the package; this file only asks Airflow for them. `delta_maintenance_dags` takes
options for schedules, pools, queues and more, and a file of your own may call it as well.
"""

from delta_maintenance_airflow.dags import delta_maintenance_dags

delta_maintenance_dags()
