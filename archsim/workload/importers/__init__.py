"""Reading routing from wherever it was recorded into a trace store."""

from archsim.workload.importers.importing import Report, Watcher, import_sources

__all__ = ["Report", "Watcher", "import_sources"]
