"""A program as one LLVM function that runs a warp until it ends, waits, or has to stop: `i32 kernel(context, frame)`.

The function is a switch over basic blocks. A block logs itself, computes, writes the registers that live on into the
frame, and jumps: directly where the target is known, through the switch behind the reconvergence stack. A block with
instructions that are not generated is cut behind each (pieces.py): a piece yields AT_STEP in front of it. Other blocks
are cut where a warp lets those before it read what it overwrites (overwritten.py)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from functional.errors import refuse
from functional.isa.emitter import Value
from functional.isa.instructions import CARRIED, form_of, has_no_effect
from functional.isa.memory import access_of
from functional.isa.operation import REFUSALS, Unsupported, refuse_if
from functional.isa.slots import CONDITION_CODE, specials_of
from functional.isa.slow_paths import test_of
from functional.llvm_executor import accesses, matrices
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.analysis import analyse
from functional.llvm_executor.control import cut, give_way, terminate
from functional.llvm_executor.emit import ATTRIBUTES
from functional.llvm_executor.overwritten import overwriting
from functional.llvm_executor.pieces import (
    Care,
    Piece,
    barriers_of,
    guarded,
    may_be_far,
    may_fault,
    pieces_of,
    waits_for_grid,
)
from functional.llvm_executor.unit import Unit, register_kind
from functional.programs.program import ENDS, BasicBlock, Program
from functional.ptx.ir import CLUSTER_SHARED, Instruction, Register, Symbol

_LOGGED = {"ld", "ldu", "st", "atom", "red", "ldmatrix", "cp", "wmma"}


@dataclass(frozen=True)
class Generated:
    """IR text of a kernel, and what a launch has to know to call it."""

    text: str
    frame_bytes: int
    zeroed: tuple[int, ...]  # frame offsets (128 B each) that must be 0 when a warp begins
    symbols: tuple[Symbol, ...]  # whose addresses the symbol table holds, in order
    by_piece: bool = False  # warps run a piece at a time, for which `left_out` and `places` are
    left_out: tuple[int, ...] = ()  # positions of instructions that are left to steps
    # Of registers that steps name: name and type, place in a frame, and whether it is one word for all lanes
    places: tuple[tuple[tuple[str, str], int, bool], ...] = ()
    care: Care = Care.NONE

    def watched(self, program: Program) -> frozenset[int]:
        """Positions of generated instructions in front of which a step tells their lanes."""
        return guarded(program, frozenset(self.left_out)) if self.care == Care.GUARDS else frozenset()


def generate(program: Program, in_clusters: bool = False, care: Care = Care.NONE) -> Generated:
    """`in_clusters`: thread blocks have shared memory in common. Raises Unsupported where nothing can be generated."""
    if care == Care.OUTLINES:
        unit = Unit(program, analyse(program, frozenset()), frozenset(), False, True)
        parts = tuple((Piece(b.start, b.stop, b.index, False),) for b in program.code_blocks)
        return replace(_generated(unit, parts, _outline, set()), care=Care.OUTLINES)
    reasons = [may_be_far] * in_clusters + [may_fault] * (care > Care.NONE)
    left_out = {i.index for i in program.instructions if any(reason(i) for reason in reasons)}
    together = in_clusters or care > Care.NONE or waits_for_grid(program)
    while True:
        if left_out or together:
            left_out |= barriers_of(program)
        unit = Unit(program, analyse(program, left_out), left_out, in_clusters, together)
        watched = guarded(program, left_out) if care == Care.GUARDS else frozenset()
        watched = watched if unit.by_piece else overwriting(program)
        named = {r for i in left_out | watched for r in _named(program.instructions[i])}
        if program.recursive:  # those that calls put aside
            named = set(program.registers)
        made = _generated(unit, pieces_of(program, left_out, watched), _piece, named)
        if not unit.refused:
            return replace(made, care=care)
        refuse(unit.refused <= left_out, "its text is not understood", Unsupported)
        left_out = left_out | unit.refused


def _generated(
    unit: Unit, parts: tuple[tuple[Piece, ...], ...], write: Callable[[Unit, BasicBlock, Piece], None],
    named: set[Register],
) -> Generated:  # fmt: skip
    program, e = unit.program, unit.e
    try:
        cases = " ".join(f"i32 {piece.entry}, label %B{piece.entry}" for pieces in parts for piece in pieces)
        e.label("entry")
        e.raw("br label %dispatch")
        e.label("dispatch")
        current = e.load("%frame", at.BLOCK, "i32")
        e.raw(f"switch {current}, label %gone [ {cases} ]")
        for block, pieces in zip(program.code_blocks, parts, strict=True):
            for piece in pieces:
                write(unit, block, piece)
        returns = {"gone": at.FAULT, "stop": at.STOPPED, "finished": at.FINISHED, "barrier": at.AT_BARRIER}
        returns |= {"point": at.AT_POINT} if unit.points else {}
        returns |= {"step": at.AT_STEP} if unit.by_piece else {}
        for label, code in returns.items():
            e.label(label)
            e.raw(f"ret i32 {code}")
        initial = [*unit.analysis.live[0], *([CONDITION_CODE] if CONDITION_CODE in unit.places else [])]
        live = sorted((unit.place(r), register_kind(r)) for r in initial)
        zeroed = tuple(o + 128 * i for o, kind in live for i in range(2 if kind == "i64" else 1))
        places = [((r.name, r.type), unit.place(r), r in unit.analysis.uniform) for r in named]
        head = "define i32 @kernel(ptr noalias %ctx, ptr noalias %frame) #0 {"
        text = "\n".join([head, *e.lines, "}", *e.functions.values(), *e.declarations.values(), ATTRIBUTES, ""])
        size = -(-unit.frame_bytes // 64) * 64 + 256
        steps = unit.by_piece, tuple(sorted(unit.left_out)), tuple(sorted(places))
        return Generated(text, size, zeroed, tuple(unit.symbols), *steps)
    except REFUSALS:
        raise Unsupported from None


def _outline(unit: Unit, block: BasicBlock, piece: Piece) -> None:
    unit.e.label(f"B{piece.entry}")
    _prologue(unit, piece, [], True)
    cut(unit, block, piece, unit.program.instructions[piece.start : piece.stop], frozenset())


def _piece(unit: Unit, block: BasicBlock, piece: Piece) -> None:
    e, instructions = unit.e, unit.program.instructions[piece.start : piece.stop]
    unit.values.clear()
    unit.written.clear()
    unit.guard, unit.guarded = None, e.literal(0, "i64")
    e.label(f"B{piece.entry}")
    logged = [i for i in instructions if i.opcode in _LOGGED and i.is_memory and i.index not in unit.left_out]
    _prologue(unit, piece, logged, piece.entry == block.index)
    unit.may_fault = bool(logged)
    ends = piece.stop == block.stop and not piece.is_cut
    body = instructions[:-1] if piece.is_cut or (ends and instructions[-1].opcode in ENDS) else instructions
    for unit.position, inst in enumerate(body):
        unit.begin_guard(inst.guard)
        try:
            instruction(unit, inst)
        except REFUSALS:
            unit.refused.add(inst.index)
    unit.guard = None
    try:
        if ends:
            terminate(unit, block, instructions)
        else:
            end = cut if unit.by_piece else give_way
            end(unit, block, piece, instructions, _read_behind(unit, block, piece))
    except REFUSALS:
        unit.refused.add(piece.stop - 1)


def _named(inst: Instruction) -> set[Register]:
    """Registers that a step of it reads or writes."""
    carries = inst.opcode in CARRIED or "cc" in inst.modifiers
    more = ([inst.guard.register] if inst.guard else []) + ([CONDITION_CODE] if carries else [])
    return {*inst.reads(), *inst.writes(), *more, *specials_of(inst)}


def _read_behind(unit: Unit, block: BasicBlock, piece: Piece) -> frozenset[Register]:
    """Registers that the rest of a block names, from the instruction on that a piece leaves to its step."""
    if block.index not in unit.last_named:
        named = ((r, i.index) for i in unit.program.instructions[block.start : block.stop] for r in _named(i))
        unit.last_named[block.index] = dict(named)
    start = piece.stop - piece.is_cut
    return frozenset(register for register, last in unit.last_named[block.index].items() if last >= start)


def _bound(unit: Unit, inst: Instruction) -> int:
    if inst.opcode in ("wmma", "cp"):
        return 64  # 32 lines of at most 128 bytes; what it reads, and the passes in which it writes
    if inst.opcode in ("atom", "red") or inst.space in ("global", "const", "param"):
        return 32
    try:
        size, count = access_of(inst)
    except Unsupported:
        unit.refused.add(inst.index)
        return 0
    return 32 * max(1, size * count // 4)


def _prologue(unit: Unit, piece: Piece, logged: list[Instruction], begins: bool) -> None:
    """Stop if a stream might overflow or the warp's turn is over; log the block that `begins` and its lanes."""
    e = unit.e
    event, over = unit.context("event"), e.compare("uge", unit.context("used"), unit.context("turn_stop"))
    stop = e.op("or", e.compare("uge", event, unit.context("event_stop")), over)
    records = sum(_bound(unit, i) for i in logged if i.space != "shared" or i.opcode == "cp")
    conflicts = sum(i.space in ("shared", "generic") or i.opcode == "cp" for i in logged)
    for name, size in (("records", 4 * records), ("conflicts", conflicts)):
        if size:
            end = e.op("add", unit.context(name), size)
            stop = e.op("or", stop, e.compare("ugt", end, unit.context(name + "_stop")))
    e.store("%frame", at.BLOCK, e.literal(piece.entry, "i32"))
    e.raw(f"br {stop}, label %stop, label %B{piece.entry}.go")
    e.label(f"B{piece.entry}.go")
    if piece.entry in unit.points:  # stop where the effect depends on the order of thread blocks, unless it may pass
        left = unit.context("points_left")
        e.raw(f"br {e.compare('eq', left, 0)}, label %point, label %B{piece.entry}.pass")
        e.label(f"B{piece.entry}.pass")
        unit.set_context("points_left", e.op("sub", left, 1))
    e.mask = e.load("%frame", at.MASK, "i32")
    if not begins:
        return
    _log_event(unit, piece.entry, e.mask, 1)


def _log_event(unit: Unit, block: int, lanes: Value, step: Value | int) -> None:
    """The next event of the stream, which is kept if it is a step further behind."""
    e, event = unit.e, unit.context("event")
    blocks, masks = unit.context("blocks", "ptr").name, unit.context("masks", "ptr").name
    e.store(e.scalar(f"getelementptr i16, ptr {blocks}, {event}", "ptr"), 0, e.literal(block, "i16"), align=2)
    e.store(e.scalar(f"getelementptr i32, ptr {masks}, {event}", "ptr"), 0, lanes)
    unit.set_context("event", e.op("add", event, step))


def _log_slow(unit: Unit, inst: Instruction, slow: Value) -> None:
    """The lanes that take the slow path of an instruction, if any do."""
    lanes = unit.e.op("and", unit.lanes(), unit.e.bits_of(slow))
    some = unit.e.cast("zext", unit.e.compare("ne", lanes, 0), "i64")
    _log_event(unit, unit.program.slow_paths[inst.index], lanes, some)


_TABLE = {
    "mma": matrices.mma, "wmma": matrices.wmma, "ldmatrix": matrices.ldmatrix, "cp": matrices.async_copy,
    "ld": accesses.load, "ldu": accesses.load, "st": accesses.store, "atom": accesses.atomic, "red": accesses.atomic,
}  # fmt: skip


def instruction(unit: Unit, inst: Instruction) -> None:
    """One instruction other than those that end a block."""
    if has_no_effect(inst):
        return
    refuse_if(CLUSTER_SHARED in inst.modifiers and inst.is_memory)
    if inst.opcode in _TABLE:
        return _TABLE[inst.opcode](unit, inst)
    operation, sources, destinations = form_of(inst)
    pairs = zip(sources, operation.sources, strict=True)
    values = [unit.get(s, t, i in inst.negated_sources) for i, (s, t) in enumerate(pairs)]
    if is_slow := test_of(inst):
        _log_slow(unit, inst, is_slow(unit.e, *values))
    unit.e.doubtful = None
    result = operation.emit(unit.e, *values)
    if unit.e.doubtful is not None:
        unit.fault_if(unit.e.compare("ne", unit.e.op("and", unit.e.bits_of(unit.e.doubtful), unit.lanes()), 0))
    results = result if isinstance(result, tuple) else (result,)
    for target, value, type_ in zip(destinations, results, operation.destinations, strict=True):
        unit.set(target, unit.e.widen(value) if operation.across else value, type_)
    return None
