"""Settings for a process that runs one command line and nothing else."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys

_MMAP_THRESHOLD = -3
_TRIM_THRESHOLD = -1
_ARENA_MAX = -8
_ARENAS = 2
_KEPT_BYTES = 1 << 30


def own_the_process() -> None:
    """Trades memory for time. Only for a process that no other code shares.

    A log is read into many buffers of a few megabytes. By default, the C library returns each of
    them to the system and gets cleared memory for the next, which takes a fifth of the time of a
    checkpoint. Here the memory is returned only at exit.
    """
    _open_closed_streams()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # NumPy starts threads for linear algebra, which is not used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        pass  # Only available in the GNU C library.
    else:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        # Otherwise, each new thread may keep freed memory that no other thread can use.
        mallopt(_ARENA_MAX, _ARENAS)
    sys.meta_path.insert(0, _WithoutPandas())
    # At exit, the interpreter searches all loaded objects for cycles, although the end of the
    # process frees them anyway. That takes a twelfth of the time of a short command.
    atexit.register(gc.freeze)


def _open_closed_streams() -> None:
    """Opens the standard streams that the parent process has closed, on the null device.

    Otherwise, a result could not be printed after its commit, and a run that succeeded would end
    with an error. A data file could also get the descriptor of stderr, and with it the messages
    that libraries write there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, which is that of the stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


class _WithoutPandas:
    """Hides pandas from Arrow, which imports it to check whether a value comes from pandas.

    No value here does. Measured in pairs with pandas 3.1, `files` of a small table takes 0.38 s of
    CPU with this class and 0.62 s without.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not used on the command line", name=fullname)
