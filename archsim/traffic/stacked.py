"""Arrays of one shape, one a step, as one array: in memory, or, if there are many, in a file that is mapped.

Pages of a mapped file that were read count as memory of the process until it lets go of them, see `let_go`.
"""

import mmap
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

HELD_BYTES = 1 << 20
"""Most bytes of one array that stay in memory where there is a file for it."""


class Stacked:
    """Collects steps of shape and dtype (wider ones widen all). file: for steps beyond HELD_BYTES; None: no file."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, file: Path | None = None) -> None:
        self._shape, self._dtype, self._file = shape, np.dtype(dtype), file
        self._held: list[np.ndarray] = []
        self._written = 0

    def append(self, step: np.ndarray) -> None:
        """Add the array of the next step, which must not change from then on. Raises OSError as writing does."""
        self._held.append(step)
        if self._file is not None and sum(each.nbytes for each in self._held) > HELD_BYTES:
            self._write(self._file)

    def take(self) -> np.ndarray:
        """All steps so far, [step, ...] of the shape, which are forgotten here. Raises OSError as writing does."""
        if self._file is None or not self._written:
            return self._join()
        self._write(self._file)
        steps, self._written = self._written, 0
        return read_array(self._file, self._dtype, (steps, *self._shape))

    def _write(self, file: Path) -> None:
        narrow, steps = self._dtype, self._join()
        if self._written and steps.dtype != narrow:  # those in the file are too narrow
            before = read_array(file, narrow, (self._written, *self._shape)).astype(steps.dtype)
            file.unlink()
            _append(file, before)
        _append(file, steps)
        self._written += len(steps)

    def _join(self) -> np.ndarray:
        """The steps that are held, emptying the list on the way, so that memory never holds all of them twice."""
        self._dtype = np.result_type(self._dtype, *{step.dtype for step in self._held})
        every = np.empty((len(self._held), *self._shape), self._dtype)
        for at in reversed(range(len(self._held))):
            every[at] = self._held.pop()
        return every


def read_array(file: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
    """The array whose bytes a file is; mapped, if it has more than HELD_BYTES. Changes of it stay in the process.

    Raises OSError as reading does, ValueError for a file of another size.
    """
    n_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if file.stat().st_size != n_bytes:
        raise ValueError(f"{file}: {file.stat().st_size} bytes; expected {n_bytes}")
    if n_bytes <= HELD_BYTES:
        return np.fromfile(file, dtype).reshape(shape)
    with file.open("rb") as stream:
        return np.ndarray(shape, dtype, buffer=mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes. A mapped array's pages are given back on the way, as `let_go` does."""
    crc, content, step = 0, array.reshape(-1).view(np.uint8), max(HELD_BYTES, mmap.PAGESIZE)
    for begin in range(0, len(content), step):
        crc = zlib.crc32(content[begin : begin + step].data, crc)
        let_go(array)
    return crc


def let_go(array: np.ndarray) -> None:
    """Give the pages of a mapped array back, if it is one that nobody has changed; they are read anew when needed."""
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.base.madvise(mmap.MADV_DONTNEED)


def _append(file: Path, steps: np.ndarray) -> None:
    with file.open("ab") as stream:
        stream.write(steps.data)
