"""What every compiled kernel of the project shares; importing it imports numba."""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic

_numba: Any = numba  # half of numba is typed, which is worse than none
types, carray = _numba.types, _numba.carray

# Sums may be reordered, so that they are vectorised; NaN and infinity keep their meaning.
_REORDER = {"reassoc", "nsz", "contract"}


def _identity(x: int) -> int:
    return x


def _can_cache() -> bool:
    """Returns whether compiled code can be kept: numba looks for a directory by itself and raises if it finds none."""
    try:
        numba.njit("int64(int64)", cache=True)(_identity)
    except Exception:  # no place, no permission, a full disk
        return False
    return True


_CACHE = _can_cache()


def jit(*signature: str, nogil: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles: at once with a signature, when first called without. What is compiled is kept on disk.

    Args:
        signature: Types of the arguments and of the result, as numba writes them; none to leave them open.
        nogil: Whether to give up the GIL. Getting it back from a busy thread can take 5 ms, so only for large tensors.

    Returns:
        The decorator.
    """
    return numba.njit(list(signature) or None, cache=_CACHE, fastmath=_REORDER, nogil=nogil)


def _pointer_to(element: Any) -> Any:
    """An intrinsic that reads an integer as the address of `element` values.

    Returns:
        A function of an integer, callable in compiled code.
    """

    def cast(typing_context: Any, address: Any) -> Any:
        pointer = types.CPointer(element)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer))

        return pointer(types.int64), generate

    return intrinsic(cast)


def _ask_for() -> Any:
    """An intrinsic that asks for the cache line at an address, which may be any at all.

    Returns:
        A function of an integer, callable in compiled code.
    """

    def ask(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            read, keep, data = (ir.Constant(word, number) for number in (0, 3, 1))
            builder.call(prefetch, [builder.inttoptr(arguments[0], byte), read, keep, data])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return intrinsic(ask)


prefetch = _ask_for()
float32_at = _pointer_to(types.float32)
float64_at = _pointer_to(types.float64)
int32_at = _pointer_to(types.int32)
int16_at = _pointer_to(types.int16)
