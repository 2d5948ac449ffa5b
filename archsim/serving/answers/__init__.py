"""``archsim serve``: a run with its page, loads around it, a search of configurations, a user's own measurement."""
