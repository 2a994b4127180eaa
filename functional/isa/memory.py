"""The windows of the state spaces among generic addresses, and forms of `ld st atom red cp.async`."""

from typing import NamedTuple

from functional.isa.operation import as_address, as_number, refuse_if
from functional.isa.slots import Slots
from functional.launches.memory import CONST_LIMIT_BYTES, CONST_WINDOW
from functional.ptx import ir

# Generic addresses of shared address 0, of local address 0 of the executing thread, and of the parameter block.
SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW = 0x1000_0000, 0x2000_0000, 0x3000_0000
WINDOW_BYTES, _MOST_BLOCKS = 1 << 24, 16
PENDING_BITS = 20  # of an `mbarrier` object: threads that a phase expects, and above them those still missing
RANK_BYTES = 1 << 24  # of shared addresses that each thread block of a cluster has
WINDOWS: dict[str, tuple[int, int]] = {  # space -> first generic address, and the first behind
    "shared": (SHARED_WINDOW, SHARED_WINDOW + WINDOW_BYTES),
    ir.CLUSTER_SHARED: (SHARED_WINDOW, SHARED_WINDOW + _MOST_BLOCKS * RANK_BYTES),
    "local": (LOCAL_WINDOW, LOCAL_WINDOW + WINDOW_BYTES),
    "param": (PARAM_WINDOW, PARAM_WINDOW + WINDOW_BYTES),
    "const": (CONST_WINDOW, CONST_WINDOW + CONST_LIMIT_BYTES),
}
GENERIC = {space: first for space, (first, _) in WINDOWS.items()}  # space -> generic address of its address 0
SHARED = frozenset({"shared", ir.CLUSTER_SHARED})  # spaces whose addresses have 32 bits
_CACHE_HINTS = frozenset((
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "volatile", "relaxed", "acquire", "release", "weak", "mmio",
    "sys", "gpu", "cta", "cluster", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
    "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B", "L2::evict_last", "L2::evict_normal", "L2::evict_first",
    "L2::cache_hint", "unified",
))  # fmt: skip
_QUALIFIERS = frozenset(
    ["relaxed", "acquire", "release", "acq_rel", "gpu", "cta", "cluster", "sys", "noftz", "global", "shared",
     ir.CLUSTER_SHARED, "L2::cache_hint", "v2", "v4", "v8"]
)  # fmt: skip
_COPY_HINTS = frozenset({"L2::64B", "L2::128B", "L2::256B", "L2::cache_hint"})
_INTEGER = ("u32", "s32", "u64", "s64")
ATOMIC_TYPES: dict[str, tuple[str, ...]] = {  # operation -> types
    "add": (*_INTEGER, "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"), "min": _INTEGER, "max": _INTEGER,
    **dict.fromkeys(("and", "or", "xor", "exch"), ("b32", "b64")), "inc": ("u32",), "dec": ("u32",),
    "cas": ("b16", "b32", "b64"),
}  # fmt: skip


def space_of(slots: Slots, inst: ir.Instruction, address: ir.Address) -> str:
    """A name in SPACES, or "generic"."""
    space = ir.CLUSTER_SHARED if ir.CLUSTER_SHARED in inst.modifiers else inst.space
    if space != "param":
        return space
    base = address.base
    if isinstance(base, ir.Symbol):
        return "param" if base.name in slots.kernel_parameters else "call"
    return "param" if slots.program.function_of[inst.index] == slots.program.name else "call"


def access_of(inst: ir.Instruction) -> tuple[int, int]:
    """(element bytes, elements) of `ld` and `st`. Raises Unsupported for unknown modifiers."""
    flags = [m for m in inst.modifiers if m not in ir.TYPE_BYTES and m not in ir.SPACES and m not in _CACHE_HINTS]
    refuse_if(inst.type in ("", "pred", "b128") or len(flags) > 1 or any(f not in ("v2", "v4", "v8") for f in flags))
    elements = int(flags[0][1:]) if flags else 1
    size = ir.TYPE_BYTES[inst.type]
    refuse_if(size * elements > 32)
    return size, elements


def elements_of(operand: ir.Operand | None, count: int) -> tuple[ir.Operand | None, ...]:
    """The elements of what is loaded or stored. Raises Unsupported if they are not as many."""
    refuse_if(len(ir.parts_of(operand)) != count)
    return ir.parts_of(operand)


def atomic_name(inst: ir.Instruction) -> str:
    """The operation of `atom` and `red`, a key of ATOMIC_TYPES. Raises Unsupported."""
    names = [m for m in inst.modifiers if m in ATOMIC_TYPES]
    known = {*_QUALIFIERS, *names, inst.type}
    refuse_if(len(names) != 1 or set(inst.modifiers) - known or inst.type not in ATOMIC_TYPES[names[0]])
    return names[0]


def operands_of(inst: ir.Instruction) -> tuple[ir.Operand, ...]:
    """The operands behind the address, without a cache policy. Raises Unsupported if there is none."""
    operands = inst.sources[1:-1] if "L2::cache_hint" in inst.modifiers else inst.sources[1:]
    refuse_if(not operands)
    return operands


class Copy(NamedTuple):
    """A `cp.async`: addresses, bytes a lane, and how many of them are read (an operand; None: all)."""

    to: ir.Address
    source: ir.Address
    size: int
    read: ir.Operand | None
    ignore: ir.Operand | None  # predicate: read nothing


def copy_of(inst: ir.Instruction) -> Copy:
    """The operands of `cp.async.{ca,cg}.shared.global [to], [from], size[, read or ignore][, policy]`."""
    flags = [m for m in inst.modifiers if m not in _COPY_HINTS]
    refuse_if(flags not in (["async", "ca", "shared", "global"], ["async", "cg", "shared", "global"]))
    operands = list(inst.sources)
    if "L2::cache_hint" in inst.modifiers:
        operands.pop()
    refuse_if(not 3 <= len(operands) <= 4)
    to, source, size = operands[:3]
    to, source, size_bytes = as_address(to), as_address(source), as_number(size)
    refuse_if(size_bytes not in ((16,) if flags[1] == "cg" else (4, 8, 16)))
    last = operands[3] if len(operands) > 3 else None
    ignores = isinstance(last, ir.Register) and last.type == "pred"
    return Copy(to, source, size_bytes, None if ignores else last, last if ignores else None)
