"""How sure a result is: uncertain numbers, worlds drawn from them, and what follows for a headline."""
