"""``ar.place`` and ``archsim place``: from recorded loads to a placement that a serving engine can start with."""
