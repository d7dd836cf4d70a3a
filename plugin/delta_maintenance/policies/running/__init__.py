"""How the tables of a policy are worked on side by side."""
