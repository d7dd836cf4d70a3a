"""The maintenance operations: one package each, with Options, Plan, Result, plan() and apply()."""
