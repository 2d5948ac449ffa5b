"""``python -m archsim.report.reference [DOCS]``: write the reference and the JSON Schemas again."""

import sys
from pathlib import Path

from archsim.report.reference.files import write_reference

if __name__ == "__main__":
    write_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
