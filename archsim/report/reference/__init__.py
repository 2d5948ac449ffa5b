"""The reference of every key of system, model, experiment, assumption and traffic files, generated from the specs."""
