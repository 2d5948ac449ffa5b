"""Measurements on a GPU, as ``calibration.measurements.schema``: ``python -m calibration.measure --help``."""
