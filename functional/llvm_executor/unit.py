"""The code of one kernel while it is generated: operands to values and results to registers."""

from collections.abc import Set

from functional.isa.emitter import BITS, Value
from functional.isa.memory import RANK_BYTES
from functional.isa.operation import Unsupported, kind_of, refuse_if
from functional.isa.slots import CLOCKS, CONSTANTS, LANE_MASKS, RESERVED_SHARED, Slots, immediate, special_type
from functional.launches.memory import function_address
from functional.llvm_executor import context_layout as at
from functional.llvm_executor.analysis import Analysis
from functional.llvm_executor.emit import LlvmEmitter, constants
from functional.programs.program import Program
from functional.ptx.ir import TYPE_BYTES, Guard, Immediate, Operand, Register, Special, Symbol

# What is worked out for each axis: the operation on it and the extent of a cluster
_CLUSTERED = {"%clusterid": ("udiv", "ctaid"), "%cluster_ctaid": ("urem", "ctaid"), "%nclusterid": ("udiv", "nctaid")}


def register_kind(register: Register) -> str:
    """How a register is kept: raw bits, predicates as i1."""
    return "i1" if register.type == "pred" else f"i{8 * TYPE_BYTES[register.type]}"


class Unit:
    """Emitter plus the registers' values inside the current basic block."""

    def __init__(
        self, program: Program, analysis: Analysis, left_out: Set[int], in_clusters: bool, together: bool
    ) -> None:
        self.program, self.analysis, self.left_out, self.in_clusters = program, analysis, left_out, in_clusters
        self.by_piece = bool(left_out) or together
        self.refused: set[int] = set()  # positions of what turned out not to be generated
        self.slots = Slots(program)
        self.e = LlvmEmitter()
        self.values: dict[Register, Value] = {}
        self.written: dict[Register, None] = {}
        self.guard: Value | None = None  # of the running instruction
        self.may_fault = False  # can the running piece?
        self.last_named: dict[int, dict[Register, int]] = {}  # by block: the last instruction that names a register
        self.position = 0  # of the running instruction in its block
        self.guarded = self.e.literal(0, "i64")  # thread instructions of guarded instructions of the block
        self.places: dict[Register, int] = {}
        tables = [8 * (len(i.targets) + 1) for i in program.instructions if i.opcode == "brx"]
        matrices = [at.MATRIX_BYTES for i in program.instructions if i.opcode in ("mma", "wmma")]
        self.frame_bytes = at.SCRATCH + -(-max([0, *tables, *matrices]) // 64) * 64
        self.symbols: list[Symbol] = []
        self.points = frozenset() if self.by_piece else program.ordered_blocks
        self.meetings = {b.reconvergence for b in program.blocks if b.reconvergence is not None}

    def place(self, register: Register) -> int:
        """Offset of a register in the frame."""
        if register not in self.places:
            kind = register_kind(register)
            wide = register not in self.analysis.uniform and kind != "i1"
            size = max(BITS[kind], 8) // 8 * 32 if wide else 8
            start = -(-self.frame_bytes // 64) * 64 if wide else self.frame_bytes
            self.places[register], self.frame_bytes = start, start + size
        return self.places[register]

    def fetch(self, register: Register) -> Value:
        """The current value of a register as raw bits."""
        if register not in self.values:
            kind, uniform, e = register_kind(register), register in self.analysis.uniform, self.e
            if kind == "i1":
                bits = e.load("%frame", self.place(register), "i32")
                value = e.compare("ne", bits, 0) if uniform else e.lanes_of(bits)
            else:
                value = e.load("%frame", self.place(register), kind, not uniform, align=8 if uniform else 4)
            self.values[register] = value
        return self.values[register]

    def spill(self, register: Register, blend: bool) -> None:
        """Write a register back to the frame, in the lanes of the block only if `blend`."""
        value, e, offset = self.values[register], self.e, self.place(register)
        uniform = register in self.analysis.uniform
        if uniform and value.wide:
            raise Unsupported  # the analysis and the generator disagree
        if value.kind == "i1":
            bits = e.bits_of(value)
            if blend:
                before = e.load("%frame", offset, "i32")
                bits = e.op("xor", e.op("and", e.op("xor", bits, before), e.mask), before)
            e.store("%frame", offset, bits)
            return
        if not uniform:
            value = e.widen(value)
            if blend:
                value = e.select(e.lanes_of(e.mask), value, e.load("%frame", offset, value.kind, True))
        e.store("%frame", offset, value, align=8 if uniform else 4)

    def get(self, operand: Operand | None, type_: str, negated: bool = False) -> Value:
        """An operand as a value of a PTX type."""
        kind, e = kind_of(type_), self.e
        match operand:
            case Register():
                value = self.fetch(operand)
            case Immediate(value=number):
                array = immediate(number, type_)
                bits = int(array.view(f"u{array.dtype.itemsize}")[0, 0])
                return e.as_kind(e.literal(bits, "i1" if kind == "i1" else f"i{8 * array.dtype.itemsize}"), kind)
            case Special(name=name):
                value = self.special(name)
                value = e.resize(value, f"i{BITS[kind]}", False) if kind != "i1" else value
            case Symbol():
                value = self.symbol(operand)
            case _:
                raise Unsupported
        if negated:
            value = e.op("xor", value, e.literal(-1, value.kind))
        refuse_if((value.kind == "i1") != (kind == "i1") or value.bits < BITS[kind])
        return e.as_kind(e.resize(value, f"i{BITS[kind]}", False), kind)

    def set(self, operand: Operand | None, value: Value, type_: str) -> None:
        """Write a value of a PTX type to a register, extended if it is wider, where the guard is true."""
        if operand is None:
            return
        if not isinstance(operand, Register):
            raise Unsupported
        kept, e = register_kind(operand), self.e
        refuse_if((kept == "i1") != (value.kind == "i1") or BITS[kept] < value.bits)
        value = e.resize(e.raw_bits(value), kept, type_[0] == "s")
        if self.guard is not None:
            value = e.select(self.guard, value, self.fetch(operand))
        self.values[operand] = value
        self.written[operand] = None

    def special(self, name: str) -> Value:
        """A special register such as %tid.x."""
        refuse_if(special_type(name) is None)
        base, _, axis = name.partition(".")
        e = self.e
        if base == "%tid" and axis:
            return e.load("%frame", at.TID["xyz".index(axis)], "i32", True)
        if base in ("%ctaid", "%nctaid", "%ntid", "%cluster_nctaid") and axis:
            return self.context(f"{base[1:]}_{axis}", "i32")
        if base in _CLUSTERED and axis:
            operation, of = _CLUSTERED[base]
            return e.op(operation, self.context(f"{of}_{axis}", "i32"), self.context(f"cluster_nctaid_{axis}", "i32"))
        if name == "%is_explicit_cluster":
            return e.compare("ne", self.context(name[1:]), 0)
        if name[1:] in at.SLOT:
            value = self.context(name[1:], "i32")
            return e.op("add", value, self.context("rank_base", "i32")) if name == RESERVED_SHARED else value
        if name == "%cluster_ctarank":
            return e.op("udiv", self.context("rank_base", "i32"), RANK_BYTES)
        if name == "%warpid":
            return e.load("%frame", at.WARP, "i32")
        if name == "%laneid":
            return constants(range(32), "i32")
        if name.startswith("%lanemask_"):
            return constants(LANE_MASKS[name[-2:]].tolist(), "i32")
        if name in CLOCKS:
            issued = e.op("add", e.load("%frame", at.WARP_INSTRUCTIONS, "i64", align=8), self.position)
            issued = e.op("lshr", issued, 32) if name.endswith("_hi") else issued
            return issued if special_type(name) == "u64" else e.resize(issued, "i32", False)
        return e.literal(CONSTANTS.get(name, 0), "i64" if special_type(name) == "u64" else "i32")

    def context(self, slot: str, kind: str = "i64") -> Value:
        """A slot of the launch's context."""
        return self.e.load("%ctx", at.SLOT[slot], kind, align=8)

    def set_context(self, slot: str, value: Value) -> None:
        """Write a slot of the launch's context."""
        self.e.store("%ctx", at.SLOT[slot], value, align=8)

    def fault_if(self, wrong: Value) -> None:
        """The launch is left to careful code if that holds."""
        self.may_fault = True
        self.set_context("fault", self.e.op("or", self.context("fault"), self.e.cast("zext", wrong, "i64")))

    def log(self, record: Value) -> None:
        """Append a line record."""
        where = self.context("records", "ptr").name
        self.e.store(where, 0, record)
        self.set_context("records", Value(self.e.field(where, 4), "ptr", False))

    def symbol(self, symbol: Symbol) -> Value:
        """Address of a symbol in its own space: known now, or from the table the launch fills."""
        slots = self.slots
        for table in (slots.shared, slots.local, slots.kernel_parameters, slots.call_parameters):
            if symbol.name in table:
                value = self.e.literal(table[symbol.name] + symbol.offset, "i64")
                if self.program.recursive and table in (slots.local, slots.call_parameters):  # of the running call
                    level = self.e.resize(self.e.load("%frame", at.LEVEL, "i32"), "i64", False)
                    value = self.e.op("add", self.e.op("mul", level, slots.frame_bytes), value)
                far = self.in_clusters and table is slots.shared
                return self.e.op("add", self.context("rank_base"), value) if far else value
        if symbol.name not in slots.named:
            return self.e.literal(function_address(symbol.name), "i64")
        refuse_if(slots.spaces.get(symbol.name) not in ("global", "const"))
        if symbol not in self.symbols:
            self.symbols.append(symbol)
        return self.e.load(self.context("symbols", "ptr").name, 8 * self.symbols.index(symbol), "i64", align=8)

    def go_on(self, target: int) -> None:
        """All lanes go to block `target`; that may be where the top of the stack meets the entries below."""
        e = self.e
        if target >= len(self.program.code_blocks):
            e.raw("br label %gone")
            return
        if target not in self.meetings:
            e.raw(f"br label %B{target}")
            return
        met = e.compare("eq", e.load("%frame", at.RECONVERGENCE, "i32"), target)
        name = e.name()[1:]
        e.raw(f"br {met}, label %{name}, label %B{target}")
        e.label(name)
        e.store("%frame", at.BLOCK, e.literal(target, "i32"))
        self.resume(e.call("settle"))

    def resume(self, block: Value) -> None:
        """Go where a routine of the stack says."""
        self.e.raw(f"br {self.e.compare('eq', block, -1)}, label %finished, label %dispatch")

    def begin_guard(self, guard: Guard | None) -> None:
        """Start an instruction: its guard, and the count of the lanes that execute it."""
        self.guard = None
        if guard is None:
            return
        self.guard = self.get(guard.register, "pred", guard.negated)
        wide = self.e.resize(self.e.intrinsic("ctpop", self.lanes()), "i64", False)
        self.guarded = self.e.op("add", wide, self.guarded)

    def lanes(self) -> Value:
        """Lane mask of the running instruction: active lanes with a true guard."""
        mask = self.e.mask
        return mask if self.guard is None else self.e.op("and", mask, self.e.bits_of(self.guard))
