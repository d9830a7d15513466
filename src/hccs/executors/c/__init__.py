"""Integer programs as freestanding C99: `table` has the code of every operator, `write` the folder."""
