"""Random valid PTX kernels: arithmetic of all widths, divergent branches and loops, guards, every memory space.

Without data races: a thread writes only words of its own, or adds to shared counters without reading them back.
"""

from __future__ import annotations

import numpy as np
from random_features import FUNCTIONS, REGISTERS, Features

IN_WORDS, OUT_WORDS = 512, 24  # words of the input, words a thread stores at the end
_INT2 = [
    "add.s32", "sub.s32", "mul.lo.s32", "mul.hi.s32", "mul.hi.u32", "and.b32", "or.b32", "xor.b32", "shl.b32",
    "shr.u32", "shr.s32", "min.s32", "max.u32", "div.s32", "rem.u32", "div.u32", "rem.s32", "add.sat.s32",
    "sub.sat.s32", "mul24.lo.u32",
]  # fmt: skip
_INT3 = [
    "mad.lo.s32", "mad.hi.u32", "bfe.u32", "bfe.s32", "sad.u32", "shf.l.wrap.b32", "shf.r.clamp.b32", "prmt.b32",
]  # fmt: skip
_INT1 = [
    "not.b32", "neg.s32", "abs.s32", "popc.b32", "clz.b32", "brev.b32", "bfind.u32", "cnot.b32",
]  # fmt: skip
_FLOAT2 = [
    "add.f32", "sub.f32", "mul.f32", "min.f32", "max.f32", "div.rn.f32", "add.ftz.f32", "mul.sat.f32", "mul.rz.f32",
    "add.rm.f32", "sub.rp.f32", "mul.ftz.f32",
]  # fmt: skip
_FLOAT1 = [
    "neg.f32", "abs.f32", "sqrt.rn.f32", "rcp.rn.f32", "rsqrt.approx.f32", "ex2.approx.f32", "lg2.approx.f32",
    "sin.approx.f32", "cos.approx.f32", "cvt.rni.f32.f32", "cvt.sat.f32.f32",
]  # fmt: skip
_FLOAT3 = [
    "fma.rn.f32", "fma.rz.f32", "fma.rm.f32", "fma.rn.sat.f32", "fma.rn.ftz.f32",
]  # fmt: skip
_WIDE2 = [
    "add.s64", "sub.s64", "mul.lo.s64", "mul.hi.u64", "mul.hi.s64", "and.b64", "xor.b64", "min.s64", "max.u64",
    "div.u64", "rem.s64",
]  # fmt: skip
_DOUBLE2 = [
    "add.f64", "sub.f64", "mul.f64", "min.f64",
]  # fmt: skip
_COMPARE = [
    "eq", "ne", "lt", "le", "gt", "ge",
]  # fmt: skip


class KernelText(Features):
    """One random kernel; `text` is its body, registers %r1..%r7, %f1..%f5, %rd4..%rd7, %d1..%d3, %p1..%p5."""

    def __init__(self, seed: int, size: int, threads: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.labels = self.depth = self.loops = 0
        self.threads, self.converged = threads, threads % 32 == 0
        self._begin()
        self.begin_features()
        self._statements(size)
        self._finish()

    def pick(self, *choices: str) -> str:
        return str(self.rng.choice(choices))

    def r(self) -> str:
        return f"%r{self.rng.integers(1, 8)}"

    def rs(self) -> str:
        """A 32-bit source: a register, a literal, or a special register."""
        kind = self.rng.random()
        if kind < 0.7:
            return self.r()
        if kind < 0.85:
            return str(self.rng.choice([0, 1, -1, 3, 31, 32, 255, 2147483647, -2147483648, self.rng.integers(1 << 20)]))
        special = self.pick("tid.x", "ctaid.x", "ntid.x", "laneid", "warpid", "lanemask_lt", "tid.y", "nctaid.x")
        self.lines.append(f"mov.u32 %u8, %{special};")
        return "%u8"

    def f(self) -> str:
        return f"%f{self.rng.integers(1, 6)}"

    def d(self) -> str:
        return f"%d{self.rng.integers(1, 4)}"

    def w(self) -> str:
        return f"%rd{self.rng.integers(4, 8)}"

    def p(self) -> str:
        return f"%p{self.rng.integers(1, 6)}"

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def add(self, line: str, guard: bool = True) -> None:
        if guard and self.rng.random() < 0.15:
            line = f"@{self.pick('', '!')}{self.p()} {line}"
        self.lines.append(line + ";")

    def _begin(self) -> None:
        self.lines += [
            "ld.param.u64 %rd1, [a];", "ld.param.u64 %rd2, [o];", "ld.param.u64 %rd3, [h];", "ld.param.u32 %r7, [n];",
            "mov.u32 %r8, %tid.x; mov.u32 %r9, %tid.y; mov.u32 %r10, %ntid.x; mad.lo.u32 %r8, %r9, %r10, %r8;",
            f"mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, {self.threads}, %r8;",  # linear thread of block, of grid
            "mov.u32 %r1, %r8; mov.u32 %r2, 5; mul.lo.u32 %r3, %r9, 2654435761; shr.u32 %r4, %r3, 9;",
            "mov.u32 %r5, %laneid;",
            "mov.u32 %r6, %ctaid.x; cvt.rn.f32.u32 %f1, %r4; mov.f32 %f2, 0f3fc00000; cvt.rn.f32.s32 %f3, %r3;",
            "mov.b32 %f4, %r5; mov.f32 %f5, 0fc1200000; cvt.u64.u32 %rd4, %r3; mov.u64 %rd5, 77;",
            "mul.wide.s32 %rd6, %r3, %r4;",
            "cvt.s64.s32 %rd7, %r1; cvt.f64.f32 %d1, %f1; mov.f64 %d2, 0d3ff8000000000000; cvt.rn.f64.s32 %d3, %r1;",
            "setp.lt.u32 %p1, %r4, 4000000; setp.ne.s32 %p2, %r6, 0; setp.gt.f32 %p3, %f3, 0f00000000;",
            "and.b32 %r10, %r8, 3; setp.eq.u32 %p4, %r10, 2; setp.gt.u32 %p5, %r7, 3;",
        ]  # fmt: skip

    def _finish(self) -> None:
        self.lines.append(f"mul.wide.u32 %rd8, %r9, {4 * OUT_WORDS}; add.s64 %rd8, %rd2, %rd8;")
        self.lines += [f"st.global.u32 [%rd8+{4 * i}], %r{i + 1};" for i in range(7)]
        for i in range(5):  # NaN payloads are not specified: write one of them
            self.lines.append(f"setp.nan.f32 %p6, %f{i + 1}, %f{i + 1}; selp.f32 %f6, 0f7fffffff, %f{i + 1}, %p6;")
            self.lines.append(f"st.global.f32 [%rd8+{28 + 4 * i}], %f6;")
        self.lines.append("xor.b64 %rd4, %rd4, %rd5; xor.b64 %rd6, %rd6, %rd7; st.global.u64 [%rd8+48], %rd4;")
        self.lines.append("selp.u32 %r1, 1, 0, %p1; @%p2 or.b32 %r1, %r1, 2; @%p3 or.b32 %r1, %r1, 4;")
        self.lines.append("@%p4 or.b32 %r1, %r1, 8; @%p5 or.b32 %r1, %r1, 16; st.global.u32 [%rd8+56], %r1;")
        self.lines.append("cvt.rzi.s32.f64 %r2, %d1; st.global.u32 [%rd8+60], %r2;")
        self.finish_features(64)

    def _statements(self, count: int) -> None:
        for _ in range(count):
            self.rng.choice(
                [self._integer, self._float, self._wide, self._predicate, self._convert, self._memory, self._warp,
                 self._branch, self._loop, self._top, self._half, self._new_integer, self._match, self._call,
                 self._jump, self._copy, self._matrix, self._generic],
                p=np.array([12, 10, 7, 8, 6, 12, 4, 7, 3, 3, 10, 5, 2, 3, 2, 2, 2, 2]) / 100,
            )()  # fmt: skip

    def _integer(self) -> None:
        if self.rng.random() < 0.08:
            pairs = [("add.cc.u32", "addc.cc.u32"), ("sub.cc.u32", "subc.u32"), ("add.cc.u32", "addc.u32")]
            for name in self.rng.choice(pairs):
                self.lines.append(f"{name} {self.r()}, {self.r()}, {self.rs()};")
            self.lines.append(f"mad.lo.cc.u32 {self.r()}, {self.r()}, {self.rs()}, {self.r()};")
            self.add(f"madc.hi.u32 {self.r()}, {self.r()}, {self.rs()}, {self.r()}")
        arity = self.rng.integers(1, 4)
        name = self.pick(*(_INT1, _INT2, _INT3)[arity - 1])
        source = self.r if name.startswith("bfe") else self.rs  # literals of bfe are bytes
        self.add(", ".join([f"{name} {self.r()}", self.r(), *(source() for _ in range(arity - 1))]))

    def _float(self) -> None:
        arity = self.rng.integers(1, 4)
        name = self.pick(*(_FLOAT1, _FLOAT2, _FLOAT3)[arity - 1])
        self.add(", ".join([f"{name} {self.f()}", *(self.f() for _ in range(arity))]))

    def _wide(self) -> None:
        kind = self.rng.integers(5)
        if kind == 0:
            self.add(f"mad.wide.{self.pick('s32', 'u32')} {self.w()}, {self.r()}, {self.rs()}, {self.w()}")
        elif kind == 1:
            self.add(f"{self.pick('shl.b64', 'shr.u64', 'shr.s64')} {self.w()}, {self.w()}, {self.rs()}")
        elif kind == 2:
            self.add(f"{self.pick(*_DOUBLE2)} {self.d()}, {self.d()}, {self.d()}")
        elif kind == 3:
            self.add(f"fma.rn.f64 {self.d()}, {self.d()}, {self.d()}, {self.d()}")
        else:
            self.add(f"{self.pick(*_WIDE2)} {self.w()}, {self.w()}, {self.w()}")

    def _predicate(self) -> None:
        kind = self.rng.integers(5)
        compare = self.pick(*_COMPARE)
        if kind == 0:
            self.add(f"setp.{compare}.{self.pick('s32', 'u32')} {self.p()}, {self.r()}, {self.rs()}")
        elif kind == 1:
            self.add(f"setp.{compare}{self.pick('', 'u')}.f32 {self.p()}, {self.f()}, {self.f()}")
        elif kind == 2:
            self.add(f"setp.{compare}.and.s64 {self.p()}, {self.w()}, {self.w()}, {self.p()}")
        elif kind == 3:
            self.add(f"{self.pick('and', 'or', 'xor')}.pred {self.p()}, {self.p()}, {self.p()}")
        else:
            self.add(f"selp.b32 {self.r()}, {self.rs()}, {self.r()}, {self.p()}")

    def _convert(self) -> None:
        self.add(self.pick(
            f"cvt.rzi.s32.f32 {self.r()}, {self.f()}", f"cvt.rni.u32.f32 {self.r()}, {self.f()}",
            f"cvt.rn.f32.u32 {self.f()}, {self.r()}", f"cvt.rz.f32.s32 {self.f()}, {self.r()}",
            f"cvt.u32.u64 {self.r()}, {self.w()}", f"cvt.s64.s32 {self.w()}, {self.r()}",
            f"cvt.u64.u32 {self.w()}, {self.r()}",
            f"cvt.f64.f32 {self.d()}, {self.f()}", f"cvt.rn.f32.f64 {self.f()}, {self.d()}",
            f"cvt.rp.f32.f64 {self.f()}, {self.d()}", f"cvt.rn.f32.s64 {self.f()}, {self.w()}",
            f"cvt.sat.s8.s32 {self.r()}, {self.r()}", f"mov.b64 {self.w()}, {{{self.r()}, {self.r()}}}",
            f"mov.b64 {{{self.r()}, _}}, {self.w()}", f"cvt.rzi.u64.f32 {self.w()}, {self.f()}",
        ))  # fmt: skip

    def _memory(self) -> None:
        index = self.pick(
            f"and.b32 %r10, {self.r()}, {IN_WORDS - 4};", "and.b32 %r10, %r8, 508;", "mov.u32 %r10, 16;",
            f"and.b32 %r10, %r9, {IN_WORDS - 1};", "and.b32 %r10, %r6, 31;",
        )  # fmt: skip
        self.lines.append(f"{index} mul.wide.u32 %rd8, %r10, 4; add.s64 %rd8, %rd1, %rd8;")
        own = "shl.b32 %r10, %r8, 4;"
        kind = self.rng.integers(8)
        if kind == 0:
            self.add(f"ld.global.u32 {self.r()}, [%rd8]")
        elif kind == 1:
            self.add(f"ld.global.{self.pick('u8', 's8')} {self.r()}, [%rd8+{self.rng.integers(4)}]")
        elif kind == 2:
            self.lines.append("and.b64 %rd8, %rd8, -16;")
            self.add(f"ld.global.v4.u32 {{{self.r()}, {self.r()}, _, {self.r()}}}, [%rd8]")
        elif kind == 3:
            self.lines.append(own + f" st.shared.u32 [%r10+{4 * self.rng.integers(4)}], {self.r()};")
            self.add(f"ld.shared.{self.pick('u32', 'u16')} {self.r()}, [%r10+{4 * self.rng.integers(4)}]")
        elif kind == 4:
            self.lines.append(f"st.local.u32 [l+{4 * self.rng.integers(4)}], {self.r()}; and.b32 %r10, {self.r()}, 12; "
                              "cvt.u64.u32 %rd8, %r10;")  # fmt: skip
            self.add(f"ld.local.u32 {self.r()}, [%rd8]")
        elif kind == 5:
            self.lines.append(f"and.b32 %r10, {self.r()}, 60; cvt.u64.u32 %rd8, %r10; add.s64 %rd8, %rd3, %rd8;")
            self.add(f"{self.pick('red.global.add.u32', 'red.add.u32', 'red.global.add.s32')} [%rd8], {self.r()}")
        elif kind == 6:
            self.lines.append(f"and.b32 %r10, {self.r()}, 28; mov.u32 %r11, c; add.u32 %r10, %r10, %r11;")
            self.lines.append("cvt.u64.u32 %rd8, %r10;")
            self.add(f"ld.const.u32 {self.r()}, [%rd8]")
        else:
            self.lines.append(own)
            self.add(f"st.shared.v2.u32 [%r10+{8 * self.rng.integers(2)}], {{{self.r()}, {self.r()}}}")

    def _warp(self) -> None:
        mode = self.pick("up", "down", "bfly", "idx")
        if self.converged and not self.depth and self.rng.random() < 0.5:  # lanes that are not active hold no value
            last = self.pick("31", "0", "7199", "%r4")
            self.add(f"shfl.sync.{mode}.b32 {self.r()}|{self.p()}, {self.r()}, {self.rs()}, {last}, -1", guard=False)
            return
        self.add(self.pick(
            f"vote.sync.{self.pick('all', 'any', 'uni')}.pred {self.p()}, {self.p()}, {self.rs()}",
            f"vote.sync.ballot.b32 {self.r()}, {self.p()}, -1", f"activemask.b32 {self.r()}",
            f"redux.sync.{self.pick('add', 'min', 'max')}.s32 {self.r()}, {self.r()}, -1",
        ), guard=False)  # fmt: skip

    def _branch(self) -> None:
        if self.depth > 3:
            return self._integer()
        self.depth += 1
        other, end = self.label(), self.label()
        self.lines.append(f"@{self.pick('', '!')}{self.p()} bra {other};")
        self._statements(int(self.rng.integers(1, 5)))
        if self.rng.random() < 0.6:
            self.lines.append(f"bra.uni {end};\n{other}:")
            self._statements(int(self.rng.integers(1, 5)))
            self.lines.append(f"{end}:")
        else:
            self.lines.append(f"{other}:")
        self.depth -= 1
        return None

    def _loop(self) -> None:
        if self.depth > 2:
            return self._float()
        self.depth += 1
        self.loops += 1
        count, bound, top, out = f"%c{self.loops}", f"%b{self.loops}", self.label(), self.label()
        limit = self.pick("3", self.r(), "%r7", "%r5")
        self.lines.append(f".reg .b32 {count}, {bound}; mov.u32 {count}, 0; and.b32 {bound}, {limit}, 7;")
        self.lines.append(f"{top}:")
        self._statements(int(self.rng.integers(1, 4)))
        if self.rng.random() < 0.3:
            self.lines.append(f"@{self.p()} bra {out};")
            self._statements(1)
        self.lines.append(f"add.u32 {count}, {count}, 1; setp.lt.u32 %p7, {count}, {bound}; @%p7 bra {top};\n{out}:")
        self.depth -= 1
        return None

    def _top(self) -> None:
        """What is only valid outside divergent code: barriers, words that other threads wrote, threads that leave."""
        if self.depth:
            return self._integer()
        if self.rng.random() < 0.2:
            self.add(f"@{self.p()} ret", guard=False)
            self.converged = False
            return None
        self.lines.append(f"shl.b32 %r10, %r8, 4; st.shared.u32 [%r10], {self.r()}; bar.sync {self.rng.integers(3)};")
        self.lines.append(f"and.b32 %r10, {self.r()}, 31; shl.b32 %r10, %r10, 4;")
        self.add(f"ld.shared.u32 {self.r()}, [%r10]")
        self.lines.append("bar.sync 0;")
        return None

    @property
    def text(self) -> str:
        registers = (
            ".reg .pred %p<8>; .reg .b32 %r<12>; .reg .b64 %rd<9>; .reg .f32 %f<7>; .reg .f64 %d<4>;\n"
            f".shared .align 16 .b8 s[{16 * max(self.threads, 32)}]; .local .align 16 .b8 l[16];\n"
        )
        parameters = ".param .u64 a, .param .u64 o, .param .u64 h, .param .u32 n"
        constants = ".const .align 4 .u32 c[8] = {7, 1, 4, 123456, 0, 9, 4294967295, 2};\n"
        return (
            f"{constants}{FUNCTIONS}.entry k({parameters}) {{\n{registers}{REGISTERS}"
            + "\n".join(self.lines)
            + "\nret;\n}\n"
        )
