"""The files of a version: their columns for users, their totals, and the changes of commits."""
