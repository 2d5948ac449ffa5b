"""Copies and launches by the CUDA driver, called through ctypes.

PyTorch synchronises both GPUs of a copy before and after it, and spends some microseconds on each call: more than a
small copy or a launch takes. Only the standard library is imported; the context is the one created by PyTorch.
"""

import ctypes
from collections.abc import Callable

THREADS = 256  # per block
BYTES_PER_CELL = 8  # four read, four written
# Each thread adds one to its float: cells[i] += 1. PTX of CUDA 11, compiled by the driver for the present GPU.
KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 cells, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [cells];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd4], %f2;
done:
    ret;
}
"""


class Driver:
    """Raises OSError without a driver; its functions raise RuntimeError with the driver's message."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def copy(self, target: int, origin: int, size_bytes: int, stream: int) -> Callable[[], None]:
        """A function that starts a copy between addresses of GPUs or page-locked memory on a stream (cuMemcpyAsync)."""
        call, check = self._cuda.cuMemcpyAsync, self._check
        arguments = (
            ctypes.c_uint64(target),
            ctypes.c_uint64(origin),
            ctypes.c_size_t(size_bytes),
            ctypes.c_void_p(stream),
        )

        def start() -> None:
            check(call(*arguments))

        return start

    def touch(self, cells: int, count: int, stream: int) -> Callable[[], None]:
        """Returns a function that starts a kernel on a stream that adds one to ``count`` floats at ``cells``."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(KERNEL)))
        self._check(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, b"touch"))
        given = ctypes.c_uint64(cells), ctypes.c_uint32(count)
        parameters = (ctypes.c_void_p * 2)(*(ctypes.addressof(one) for one in given))
        one, blocks, threads = ctypes.c_uint(1), ctypes.c_uint(-(-count // THREADS)), ctypes.c_uint(THREADS)
        nothing = ctypes.c_uint(0), ctypes.c_void_p(stream), parameters, None
        call, check = self._cuda.cuLaunchKernel, self._check

        def start(_given=given) -> None:  # keeps alive what `parameters` points to
            check(call(function, blocks, one, one, threads, one, one, *nothing))

        return start

    def wait(self, stream: int) -> None:
        self._check(self._cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))

    def _check(self, code: int) -> None:
        if code:
            words = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(words))
            raise RuntimeError(f"CUDA error {code}: {(words.value or b'unknown').decode()}")
