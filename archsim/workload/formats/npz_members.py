"""Members of untrusted ``.npz`` files of routing and loads."""

from pathlib import Path

import numpy as np

from archsim.base.archives import npz_names, read_npz
from archsim.base.errors import TraceError

member_names = npz_names


def load_members(path: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """Those of the wanted members that a file has. Raises TraceError."""
    try:
        return read_npz(path, wanted)
    except Exception as error:  # zipfile, zlib and numpy's header parser raise a dozen different exceptions
        raise TraceError(f"{path}: not a readable .npz file ({error})") from error
