"""How a record carries the steps of a run, which are many: a compressed array a column, as text."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from archsim.base.packed_files import decompress as unpacked_bytes

NO_LINK = -1  # in the columns OF_LINKS: no link was busy
OF_LINKS = ("link", "link_src", "link_dst")

Packed = Mapping[str, tuple[str, str]]
"""Name of a column → its dtype and its compressed values as text."""


def pack(columns: Mapping[str, np.ndarray]) -> Packed:
    """Columns as text, equal for equal columns."""
    kept = {}
    for name, values in columns.items():
        little = values.astype(values.dtype.newbyteorder("<"))
        kept[name] = little.dtype.str, base64.b64encode(zlib.compress(little.tobytes(), 6)).decode()
    return kept


def unpack(kept: Packed) -> dict[str, list[Any]]:
    """The columns that `pack` packed, as plain values; None where there is no link."""
    columns = {
        name: np.frombuffer(unpacked_bytes(base64.b64decode(text), "zlib"), dtype).tolist()
        for name, (dtype, text) in kept.items()
    }
    return columns | {
        name: [None if value == NO_LINK else value for value in columns[name]] for name in OF_LINKS if name in columns
    }
