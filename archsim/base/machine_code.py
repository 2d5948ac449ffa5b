"""Machine code on disk, sealed: numba's cache with a checksum. What is damaged is compiled anew, after a warning."""

import logging
import pickle
import zlib
from contextlib import suppress
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

LOG = logging.getLogger(__name__)


class _SealedFile(IndexDataCacheFile):
    """Its files hold (CRC-32, content); the checksum is of the signature, too: an index may name another's file."""

    def save(self, key: tuple, data: Any) -> None:
        content = self._dump(data)
        super().save(key, (_seal(key, content), content))

    def load(self, key: tuple) -> Any:
        """None where nothing is kept, or where it is damaged."""
        try:
            found = super().load(key)
            if found is None:
                return None
            seal, content = found
            if seal == _seal(key, content):
                return pickle.loads(content)
        except Exception:  # a damaged pickle raises any of them
            LOG.debug("%s", self._index_path, exc_info=True)
        LOG.warning("%s: damaged: its checksum does not match; it is compiled anew", self._index_path)
        with suppress(OSError):
            self.flush()
        return None


class SealedCache(FunctionCache):
    """numba's cache of a function, in sealed files."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file.__class__ = _SealedFile


class SealedCallback(CFunc):
    """A compiled callback that is kept in sealed files."""

    def enable_caching(self) -> None:
        self._cache = SealedCache(self._pyfunc)


def keep(dispatcher: Dispatcher) -> Dispatcher:
    """The same, which keeps its machine code in sealed files."""
    dispatcher._cache = SealedCache(dispatcher.py_func)
    return dispatcher


def _seal(key: tuple, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(str(key).encode()))
