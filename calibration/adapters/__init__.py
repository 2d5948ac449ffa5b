"""Layouts of public measurements, read into the tables of ``calibration.schema``; one module per source."""
