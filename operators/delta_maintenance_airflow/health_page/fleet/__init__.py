"""The page of the fleet: all tables at once, and what ran on them."""
