"""The public functions of ``import archsim as ar``; an experiment is given loaded, as a path, or as a mapping."""
