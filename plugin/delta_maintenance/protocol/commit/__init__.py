"""Commits: the actions to write, their rules, their text and their conflicts."""
