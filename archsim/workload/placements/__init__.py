"""Files from which serving engines take the initial placement of experts: one module per engine."""
