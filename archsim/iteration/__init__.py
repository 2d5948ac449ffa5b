"""One iteration: what a model computes in it, how parts overlap, what it keeps in memory, and how long it takes."""
