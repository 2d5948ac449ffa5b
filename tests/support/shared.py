"""Where the routing data, measurements and reference results are; they are not part of the repository."""

import os
from pathlib import Path


def shared_path() -> Path:
    """``$ARCHSIM_SHARED`` or the folder ``shared`` beside the checkout."""
    return Path(os.environ.get("ARCHSIM_SHARED", Path(__file__).resolve().parents[3] / "shared"))
