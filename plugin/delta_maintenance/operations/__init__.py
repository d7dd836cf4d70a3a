"""The maintenance operations: one module each, with Options, Plan, Result, plan() and apply()."""
