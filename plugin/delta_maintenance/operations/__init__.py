"""The maintenance operations: each a module with Options, Plan, Result, plan() and apply()."""
