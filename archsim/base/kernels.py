"""How functions are compiled: four decorators, used wherever arrays are worked on in loops.

Compiled functions of this project get all their arrays from the caller and never allocate, so they need no reference
counts (``_nrt=False``): counting each array of a record of arrays at every call would cost more than the work.

``kernel``  called from Python; compiled at first use and kept on disk
``free``    like kernel, and other threads run meanwhile: for work that is spread over threads
``outer``   called from kernels, compiled once
``inner``   called from kernels, inlined

Give them int64 and float64 only, constants as ``np.int64(...)``: a plain Python constant is a type of its own to numba,
and the function would be compiled once for each.
"""

from numba import njit

kernel = njit(_nrt=False, cache=True)
free = njit(_nrt=False, cache=True, nogil=True)
outer = njit(_nrt=False)
inner = njit(_nrt=False, forceinline=True)
