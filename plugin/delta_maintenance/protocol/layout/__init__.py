"""How well the data files of a table are laid out for readers that skip files by statistics."""
