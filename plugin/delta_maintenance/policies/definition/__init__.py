"""The policy document."""
