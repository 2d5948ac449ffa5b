"""Simulated serving beside measured serving: what `serving_accuracy.py` and `serving_fit.py` judge and fit by."""
