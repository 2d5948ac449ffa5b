"""Builders, tiny machines and files that tests share."""
