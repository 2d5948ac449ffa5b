"""The public functions of ``import archsim as ar``; an experiment is a loaded one, a path, or a mapping."""
