"""Four decorators that compile functions which loop over arrays.

Compiled functions in this project get all arrays from the caller and never allocate, so they need no reference
counts (``_nrt=False``): counting references to every array in a record on every call would cost more than the work.

``kernel``  called from Python; compiled on first use and cached on disk
``free``    like kernel, but releases the GIL: for work spread over threads
``outer``   called from kernels, compiled once
``inner``   called from kernels, inlined

Pass only int64 and float64, and constants as ``np.int64(...)``: numba gives a plain Python constant its own type
and would compile the function once per constant.
"""

from numba import njit

kernel = njit(_nrt=False, cache=True)
free = njit(_nrt=False, cache=True, nogil=True)
outer = njit(_nrt=False)
inner = njit(_nrt=False, forceinline=True)
