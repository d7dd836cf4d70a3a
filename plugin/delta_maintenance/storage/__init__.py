"""Where the bytes of a table are: one store per backend behind one small interface."""
