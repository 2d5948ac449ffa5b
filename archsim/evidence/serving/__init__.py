"""Measured serving beside the simulation of it."""
