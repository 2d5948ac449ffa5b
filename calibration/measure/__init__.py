"""Measurements on a GPU box, in the layout of ``calibration.measurements.schema``: ``python -m
calibration.measure --help``.
"""
