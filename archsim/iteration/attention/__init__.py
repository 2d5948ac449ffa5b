"""Attention by kind: what each keeps, what it computes, and how long that takes. One class a kind, one file a family."""
