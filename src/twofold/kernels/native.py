"""The native library: whether it is there, which instruction set it uses, and its C functions.

It is C++ behind a C interface, built when the package is installed (setup.py) where there is a compiler. It links
neither to Python nor to torch. Of the instruction sets that it holds (avx512, avx2, neon, portable) it takes the best
that this processor runs; the environment variable TWOFOLD_ISA names another.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ISA_VARIABLE = "TWOFOLD_ISA"
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "twofold_isa": (ctypes.c_char_p, []),
    "twofold_use_isa": (ctypes.c_int, [ctypes.c_char_p]),
    "twofold_set_openmp": (None, [ctypes.c_void_p]),
    "twofold_matvec": (ctypes.c_int, [ctypes.c_char_p]),
    "twofold_decode": (ctypes.c_int64, [ctypes.c_char_p]),
    "twofold_decoder_step": (ctypes.c_int, [ctypes.c_char_p] * 3),
    "twofold_rms_norm": (None, [ctypes.c_char_p]),
    "twofold_turn": (None, [ctypes.c_char_p]),
    "twofold_quantise": (None, [ctypes.c_char_p]),
    "twofold_read_bandwidth": (ctypes.c_double, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]),
    "twofold_fma_peak": (ctypes.c_double, [ctypes.c_int64, ctypes.c_int64]),
    "twofold_flops_per_round": (ctypes.c_int64, []),
    "twofold_use_large_pages": (None, [ctypes.c_void_p, ctypes.c_int64]),
}


def _find() -> Path | None:
    here = Path(__file__).parent
    return next((path for suffix in EXTENSION_SUFFIXES if (path := here / f"_native{suffix}").is_file()), None)


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why."""
    path = _find()
    if path is None:
        return None, "the native library was not built: install a C++ compiler, then install twofold again"
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return None, f"the native library does not load: {error}"
    _share_threads(loaded)
    wanted = os.environ.get(ISA_VARIABLE, "")
    if not loaded.twofold_use_isa(wanted.encode()):
        return None, f"{ISA_VARIABLE}={wanted} names no instruction set that this library has and this processor runs"
    return loaded, ""


def _share_threads(loaded: ctypes.CDLL) -> None:
    """Run on the pool of torch's OpenMP where its entry is in sight (GNU's); else on threads made for each call."""
    import torch  # noqa: F401  # brings its OpenMP with it

    try:
        entry = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return
    loaded.twofold_set_openmp(ctypes.cast(entry, ctypes.c_void_p))


_LIBRARY, _WHY_NOT = _load()
AVAILABLE = _LIBRARY is not None
"""Whether the native library can be used."""


def library() -> ctypes.CDLL:
    """The library with its functions. Raises RuntimeError that says why where there is none."""
    if _LIBRARY is None:
        raise RuntimeError(_WHY_NOT)
    return _LIBRARY


def why_not() -> str:
    """Why the library cannot be used; empty where it can."""
    return _WHY_NOT


def isa() -> str:
    """The instruction set in use: avx512, avx2, neon or portable."""
    return library().twofold_isa().decode()


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Use another instruction set inside the block, everywhere in this process.

    Raises ValueError for one that the library does not have or the processor does not run.
    """
    before = isa()
    if not library().twofold_use_isa(name.encode()):
        raise ValueError(f"{name!r} is no instruction set that this library has and this processor runs")
    try:
        yield
    finally:
        library().twofold_use_isa(before.encode())
