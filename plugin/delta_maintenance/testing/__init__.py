"""For tests, ours and yours: a table builder and the contract that every store passes."""
