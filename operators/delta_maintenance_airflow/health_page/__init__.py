"""The health page: what was last known of the policy's tables, for people."""
