"""Test tools for this library and its users: a table builder and the contract of stores."""
