"""The health page, which shows the last known state of the tables of the policy."""
