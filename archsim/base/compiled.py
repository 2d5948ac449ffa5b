"""Decorators that compile functions which loop over arrays. Most get all arrays from the caller and never allocate, so
they count no references (``_nrt=False``).

``kernel``: called from Python; compiled on first use, cached on disk; releases the GIL. ``allocating``: like it, but
may make arrays. ``outer``: called from kernels alone, compiled once. ``inner``: called from kernels alone, inlined.

Pass only int64 and float64, and constants as ``np.int64(...)``: numba compiles a function once per plain constant.
"""

import json
import logging
import os
import pickle
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast  # to Any: attributes and options that numba's types do not list

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary, get_host_cpu_features
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher
from numba.core.imputils import lower_getattr_generic
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model

from archsim.base.code_digest import PACKAGE, SHIPPED_FOR, code_is_for, shipped_code
from archsim.base.libraries import is_trusted

try:
    import fcntl
except ImportError:  # Windows: two processes may compile the same function, and either keeps it
    fcntl = None  # type: ignore[assignment]

# Machine code on disk, sealed: numba's cache with a checksum. What is damaged is compiled anew, after a warning.

LOG = logging.getLogger(__name__)
MOST_S, LOOK_S = 300.0, 0.05  # a process waits for another that compiles the same function; between two looks
# What shipped code is compiled for: x86-64-v3, which all have that Intel and AMD have sold since 2015 (AVX2), or the
# processor at hand where that is another. No code here may contract or reorder operations on floats, so that the bits
# of results are the same as with code for the processor at hand.
_PORTABLE = "x86-64-v3"
_NEEDS = frozenset(
    "+avx +avx2 +bmi +bmi2 +cmov +crc32 +cx16 +cx8 +f16c +fma +fxsr +lzcnt +mmx +movbe +popcnt +sahf +sse +sse2 +sse3 "
    "+sse4.1 +sse4.2 +ssse3 +xsave".split()
)


class _SealedFile(IndexDataCacheFile):
    """Its files hold (CRC-32, content); the checksum is of the signature, too. Untrusted files are not unpickled."""

    def _load_index(self) -> Any:
        return super()._load_index() if self._is_trusted(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        return super()._load_data(name) if self._is_trusted(self._data_path(name)) else None

    def _is_trusted(self, file: str) -> bool:
        with suppress(FileNotFoundError):
            if not (is_trusted(os.path.dirname(file)) and is_trusted(file)):
                LOG.warning("%s: not read: others than you and the owner of archsim could have written it", file)
                return False
        return True

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
        self._locked: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """None where nothing is kept: then the caller compiles, and no other process does until `release`."""
        found = super().load_overload(sig, target_context)
        if found is None:
            found = self._shipped(sig, target_context)
        if found is None and self._lock():
            found = super().load_overload(sig, target_context)  # what another process has compiled meanwhile
        return found

    def _shipped(self, sig: Any, target_context: Any) -> Any:
        """What came with the package for this processor or for `_PORTABLE`; None where nothing did."""
        folder = shipped_code()
        room = Path(self._py_func.__code__.co_filename).parent
        if folder is None or not room.is_relative_to(PACKAGE.parent):
            return None
        file = _SealedFile(str(folder / room.relative_to(PACKAGE.parent)), self._impl.filename_base, None)
        of_function, (triple, name, features), of_code = self._index_key(sig, target_context.codegen())
        for target in [(triple, name, features), (triple, _PORTABLE, "")][: 1 + (_NEEDS <= {*features.split(",")})]:
            if (found := file.load((of_function, target, of_code))) is not None:
                return self._impl.rebuild(target_context, found)
        return None

    def _lock(self) -> bool:
        """Whether no other process compiles the function: waits for one that does, unless it takes MOST_S, as one that
        was stopped. False also where nothing can be kept.
        """
        if fcntl is None or self._locked is not None:
            return False
        try:
            self._impl.locator.ensure_cache_path()
            self._locked = open(f"{self._cache_file._index_path}.lock", "ab")
            for _ in range(int(MOST_S / LOOK_S)):
                with suppress(BlockingIOError):
                    fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                time.sleep(LOOK_S)
        except OSError:
            pass
        self.release()
        return False

    def release(self) -> None:
        """Let other processes compile the function, or load it."""
        locked, self._locked = self._locked, None
        if locked is not None:
            with suppress(OSError):
                fcntl.flock(locked, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
            locked.close()


class SealedCallback(CFunc):
    """A compiled callback that is kept in sealed files."""

    def enable_caching(self) -> None:
        self._cache = SealedCache(cast(Any, self)._pyfunc)

    def compile(self) -> None:
        try:
            super().compile()
        finally:
            if isinstance(self._cache, SealedCache):
                self._cache.release()


class _Kernel(CPUDispatcher):
    """A function that Python calls, compiled by one process at a time."""

    def compile(self, sig: Any) -> Any:
        try:
            return super().compile(sig)
        finally:
            cast(Any, self)._cache.release()


def keep(dispatcher: Dispatcher) -> Dispatcher:
    """The same, which keeps its machine code in sealed files."""
    cast(Any, dispatcher)._cache = SealedCache(dispatcher.py_func)
    dispatcher.__class__ = _Kernel
    return dispatcher


def _seal(key: tuple, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(str(key).encode()))


def for_shipping(kept: Path) -> dict[str, str]:
    """The environment of a process that leaves in a folder machine code which `ship` takes."""
    portable = _NEEDS <= {*get_host_cpu_features().split(",")}
    target = {"NUMBA_CPU_NAME": _PORTABLE, "NUMBA_CPU_FEATURES": ""} if portable else {}
    return {"NUMBA_CACHE_DIR": str(kept), "NUMBA_DISABLE_INTEL_SVML": "1", "ARCHSIM_MACHINE_CODE": "0", **target}


def ship(kept: Path, folder: Path) -> int:
    """Write machine code that processes left in ``kept`` to a folder that travels with the package: by room, and with
    what `shipped_code` compares. Returns the number of functions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for room in (each for top in (PACKAGE, PACKAGE.with_name("microarch")) for each in (top, *top.rglob("*"))):
        written = kept / _CacheLocator.get_suitable_cache_subpath(str(room / "any.py"))
        for index in sorted(written.glob("*.nbi")):
            into = folder / room.relative_to(PACKAGE.parent)
            into.mkdir(parents=True, exist_ok=True)
            with index.open("rb") as file:
                version, (_, names) = pickle.load(file), pickle.load(file)
            if version == numba.__version__:
                # The stamp is of the source, which the digest of all sources stands for.
                _SealedFile(str(into), index.stem, None)._save_index(names)
                for name in names.values():
                    shutil.copyfile(written / name, into / name)
    (folder / SHIPPED_FOR).write_text(json.dumps(code_is_for()), encoding="utf-8")
    return sum(1 for _ in folder.rglob("*.nbc"))


class _Part(JITCodeLibrary):
    """LLVM code of a function that only kernels call. The kernel that it is linked into optimises all of its parts at
    once and makes machine code of them: numba does both for every part by itself, too, and for all that a part calls,
    which is half the time of a compilation.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout
        passes, builder = self._codegen._function_pass_manager()
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> Any:
        return _NoEnvironment(self._codegen)


class _NoEnvironment:
    """A code generator, for a part: code that is in no memory has no environment to set."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        pass


class _PartCompiler(Compiler):
    """numba's, into a `_Part`."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        self.state.library = _Part(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _OfKernels(CPUDispatcher):
    """A compiled function without an entry point for Python; calling it there would end the process."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.py_func.__name__
        raise TypeError(f"{name} is for kernels alone; in Python call {name}.py_func")


def _of_kernels(**options: bool) -> Callable[[Callable[..., Any]], Any]:
    compiled = cast(Any, njit)(
        _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=_PartCompiler, **options
    )

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        dispatcher.__class__ = _OfKernels
        return dispatcher

    return decorate


def _kept(**options: bool) -> Callable[[Callable[..., Any]], Any]:
    compiled = cast(Any, njit)(**options)
    return lambda function: keep(compiled(function))


kernel = _kept(_nrt=False, nogil=True)
allocating = _kept(nogil=True)
outer = _of_kernels()
inner = _of_kernels(forceinline=True)


@inner
def unsigned(number):
    """A number that is not negative, as an index: then the code has no look whether it counts from the end."""
    return np.uint64(number)


# A named tuple of arrays that kernels hand on as one address. numba passes a tuple by value: 7 words an array, which
# every call copies. For a state of 50 arrays that was half of a kernel's time, and half of its compilation.


class Reference(types.Type):
    """The address of a named tuple that does not change: fields are read through it, tuples in it as references."""

    def __init__(self, of: types.NamedTuple) -> None:
        self.of = of
        super().__init__(f"Reference({of.instance_class.__name__}#{zlib.crc32(str(of).encode()):x})")


@register_model(Reference)
class _Address(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, cgutils.voidptr_t)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference: Any, name: str) -> Any:  # type: ignore[override]  # numba has a constant
        if name not in reference.of.fields:
            return None
        field = reference.of.types[reference.of.fields.index(name)]
        return Reference(field) if isinstance(field, types.NamedTuple) else field


@intrinsic
def _reference(typing_context: Any, of: Any) -> Any:
    """A `Reference` to a named tuple, which lives until the kernel that asks for it returns."""
    if isinstance(of, Reference):
        return of(of), lambda context, builder, signature, arguments: arguments[0]

    def store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.alloca_once_value(builder, arguments[0])
        # Reads of what does not change may be moved: nothing, which the compiler cannot look into, keeps them behind
        # the write.
        nothing = ir.FunctionType(cgutils.voidptr_t, [cgutils.voidptr_t])
        address = builder.bitcast(place, cgutils.voidptr_t)
        return builder.asm(nothing, "", "=r,0,~{memory}", [address], side_effect=True)

    return Reference(of)(of), store


@intrinsic
def _value(typing_context: Any, of: Any) -> Any:
    """The named tuple that a `Reference` leads to, for a function that takes it by value."""

    def load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.bitcast(arguments[0], context.get_value_type(of.of).as_pointer()))

    return of.of(of), load


# For a type checker, which takes them for functions of the typing context, too.
reference: Any = _reference
value: Any = _value


@lower_getattr_generic(Reference)
def _read_field(context: Any, builder: Any, reference: Any, address: Any, name: Any) -> Any:
    of = reference.of
    at = of.fields.index(name)
    place = builder.bitcast(address, context.get_value_type(of).as_pointer())
    place = cgutils.gep_inbounds(builder, place, 0, at)
    if isinstance(of.types[at], types.NamedTuple):
        return builder.bitcast(place, cgutils.voidptr_t)
    return _read(builder, place, context.get_value_type(of.types[at]), isinstance(of.types[at], types.Array))


def _read(builder: Any, place: Any, kind: Any, is_array: bool = False) -> Any:
    """The value at an address, member by member, each of which never changes. An array is borrowed: it has no count."""
    if not isinstance(kind, ir.LiteralStructType | ir.ArrayType):
        value = builder.load(place)
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value
    members = kind.elements if isinstance(kind, ir.LiteralStructType) else [kind.element] * kind.count
    whole = cgutils.get_null_value(kind)
    for at, member in enumerate(members):
        if is_array and at < 2:  # who owns it
            continue
        whole = builder.insert_value(whole, _read(builder, cgutils.gep_inbounds(builder, place, 0, at), member), at)
    return whole


def pointer(function: Callable[..., Any], signature: Any, *, cached: bool = True) -> Any:
    """A function that kernels get as an argument, compiled for one signature, as they are. ``cached``: on disk."""
    callback = SealedCallback(function, normalize_signature(signature), locals={}, options={"_nrt": not cached})
    if cached:
        callback.enable_caching()
    callback.compile()
    return callback


# A hash of whole numbers, by which draws depend on a counter alone (SplitMix64: Steele et al., OOPSLA 2014).

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Bits = TypeVar("Bits", np.ndarray, np.uint64)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix_bits(x: Bits) -> Bits:
    """SplitMix64's finaliser: a bijection of 64-bit numbers that scatters neighbours. Scalars or arrays."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * MIX_1
        x = (x ^ (x >> np.uint64(27))) * MIX_2
    return x ^ (x >> np.uint64(31))
