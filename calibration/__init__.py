"""Turns measurements into parameters. It has a schema, adapters for public data, fits, validation, and scripts that
measure.
"""
