"""Measurements on a GPU box, in the layout of ``calibration.schema``: ``python -m calibration.measure --help``."""
