"""Attention by kind: what each keeps, what it computes, and how long that takes."""
