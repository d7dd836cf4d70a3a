"""What the tests share. Each folder says what is inside.

- `suite`: plugins of pytest, the amount of testing in a run, measurements
- `tables`, `logs`: tables and logs in a certain state
- `operations`, `rewrites`: tables, runs and checks for the tests of operations
- `stores`, `faults`, `kills`: stores that count or interleave requests, faults of every kind
- `servers`, `emulators`: servers on the loopback interface
- `hostile`: attackers, secrets, and files that are dangerous to read
- `oracle`: Delta Spark and other readers, whose answers are compared
- `orchestrators`: Airflow and Dagster
"""
