"""Expert loads: the number of tokens of every expert, without the tokens themselves; one reader per format."""
