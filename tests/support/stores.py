"""Trace stores with toy requests."""

from archsim.traffic.formats.importing import import_sources
from support.trace_files import TOY

LAYERS = [1, 2, 3, 4]


NAMES = ["a/1", "a/2", "b/9", "b/10"]


class Quiet:
    def read(self, requests, size):
        pass

    def problem(self, message):
        pass


def imported(sources, out, model=TOY, on_error="stop", jobs=1, replace=False):
    sources = sources if isinstance(sources, list) else [sources]
    return import_sources(sources, out, model, jobs, on_error, Quiet(), replace)


def contents(folder):
    """name → bytes of the files that a reader sees."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.name != ".lock"}
