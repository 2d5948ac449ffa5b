"""The public functions of ``import archsim as ar``; each takes a loaded experiment, the path of a file, or a mapping."""
