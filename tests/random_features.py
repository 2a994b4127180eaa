"""Statements of random kernels beyond plain arithmetic: 16-bit floats, pairs, matrices, calls, jump tables, copies.

16-bit values live in %h1..%h4 (f16 bits), %k1..%k3 (bf16 bits), %q1..%q4 (f16x2) and %t1..%t3 (bf16x2). Nothing reads
those as integers, since NaN payloads are not specified; `finish` writes them out with one NaN.
"""

from __future__ import annotations

FUNCTIONS = """
.func (.param .b32 out) turn(.param .b32 x, .param .b64 y) {
.reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<3>;
ld.param.b32 %r1, [x]; ld.param.b64 %rd1, [y]; cvt.u32.u64 %r2, %rd1; setp.lt.u32 %p1, %r1, %r2;
@%p1 bra LESS; mul.lo.u32 %r1, %r1, 7; setp.eq.u32 %p2, %r2, 5; @%p2 ret; bra.uni END;
LESS: add.u32 %r1, %r1, %r2;
END: st.param.b32 [out], %r1; ret;
}
.func (.param .b64 out) twice(.param .b64 y) {
.reg .b32 %r<9>; .reg .b64 %rd<3>; .local .align 8 .b8 keep[16];
ld.param.b64 %rd1, [y]; st.local.b64 [keep+8], %rd1; cvt.u32.u64 %r1, %rd1;
{ .param .b32 a0; .param .b64 a1; .param .b32 r0;
st.param.b32 [a0], %r1; st.param.b64 [a1], %rd1; call (r0), turn, (a0, a1); ld.param.b32 %r2, [r0]; }
ld.local.b64 %rd2, [keep+8]; mad.wide.u32 %rd2, %r2, 3, %rd2; st.param.b64 [out], %rd2; ret;
}
"""
REGISTERS = ".reg .b16 %h<6>, %k<5>; .reg .b32 %q<6>, %t<5>, %u<9>;\n"
_HALF2 = ["add", "sub", "mul", "min", "max", "min.NaN", "max.NaN", "add.sat", "mul.sat", "add.ftz", "mul.ftz"]
_BF2 = ["add", "sub", "mul", "min", "max", "max.NaN"]
_FMA = ["fma.rn", "fma.rn.relu"]


class Features:
    """Mixed into KernelText, whose `pick`, `add`, `r`, `f`, `w`, `p`, `label` and `lines` it uses."""

    def h(self) -> str:
        return f"%h{self.rng.integers(1, 5)}"

    def k(self) -> str:
        return f"%k{self.rng.integers(1, 4)}"

    def q(self) -> str:
        return f"%q{self.rng.integers(1, 5)}"

    def t(self) -> str:
        return f"%t{self.rng.integers(1, 4)}"

    def begin_features(self) -> None:
        self.lines += [
            "cvt.rn.f16.f32 %h1, %f1; cvt.rn.f16.s32 %h2, %r5; mov.b16 %h3, 0xBC01; cvt.rn.f16.f32 %h4, %f2;",
            "mov.u32 %u3, 0; cvt.rn.bf16.f32 %k1, %f1; cvt.rn.bf16.f32 %k2, %f2; mov.b16 %k3, 0xC0A1;",
            "mov.b32 %q1, {%h1, %h2}; mov.b32 %q2, {%h3, %h4}; mov.b32 %q3, 0x3C00BC00; mov.b32 %q4, {%h2, %h4};",
            "mov.b32 %t1, {%k1, %k2}; mov.b32 %t2, {%k3, %k2}; mov.b32 %t3, 0x3F80C000;",
        ]

    def finish_features(self, offset: int) -> None:
        """Write 11 words."""
        for n in range(1, 5):
            self.lines.append(
                f"setp.nan.f16 %p6, %h{n}, %h{n}; selp.b16 %h5, 0x7FFF, %h{n}, %p6; cvt.u32.u16 %u1, %h5;"
            )
            self.lines.append(f"mov.b32 {{%h{n}, %h5}}, %q{n}; setp.nan.f16x2 %p6|%p7, %q{n}, %q{n};")
            self.lines.append(f"selp.b16 %h{n}, 0x7FFF, %h{n}, %p6; selp.b16 %h5, 0x7FFF, %h5, %p7;")
            self.lines.append(f"mov.b32 %u2, {{%h{n}, %h5}}; mul.lo.u32 %u1, %u1, 65537; xor.b32 %u1, %u1, %u2;")
            self.lines.append(f"st.global.u32 [%rd8+{offset + 4 * n - 4}], %u1;")
        for n in range(1, 4):
            self.lines.append(
                f"setp.nan.bf16 %p6, %k{n}, %k{n}; selp.b16 %k4, 0x7FFF, %k{n}, %p6; cvt.u32.u16 %u1, %k4;"
            )
            self.lines.append(f"mov.b32 {{%k{n}, %k4}}, %t{n}; setp.nan.bf16x2 %p6|%p7, %t{n}, %t{n};")
            self.lines.append(f"selp.b16 %k{n}, 0x7FFF, %k{n}, %p6; selp.b16 %k4, 0x7FFF, %k4, %p7;")
            self.lines.append(f"mov.b32 %u2, {{%k{n}, %k4}}; mul.lo.u32 %u1, %u1, 65537; xor.b32 %u1, %u1, %u2;")
            self.lines.append(f"st.global.u32 [%rd8+{offset + 12 + 4 * n}], %u1;")

    def _half(self) -> None:
        h, k, q, t, f = self.h, self.k, self.q, self.t, self.f
        compare = self.pick("eq", "ne", "lt", "geu", "nan")
        self.add(self.pick(
            f"{self.pick(*_HALF2)}.f16 {h()}, {h()}, {h()}", f"{self.pick(*_HALF2)}.f16x2 {q()}, {q()}, {q()}",
            f"{self.pick(*_BF2)}.bf16 {k()}, {k()}, {k()}", f"{self.pick(*_BF2)}.bf16x2 {t()}, {t()}, {t()}",
            f"{self.pick(*_FMA, 'fma.rn.sat', 'fma.rn.ftz')}.f16 {h()}, {h()}, {h()}, {h()}",
            f"{self.pick(*_FMA)}.f16x2 {q()}, {q()}, {q()}, {q()}",
            f"{self.pick(*_FMA)}.bf16 {k()}, {k()}, {k()}, {k()}",
            f"{self.pick(*_FMA)}.bf16x2 {t()}, {t()}, {t()}, {t()}",
            f"{self.pick('neg', 'abs', 'ex2.approx', 'tanh.approx')}.f16 {h()}, {h()}",
            f"{self.pick('neg', 'abs')}.bf16x2 {t()}, {t()}", f"{self.pick('neg', 'abs', 'ex2.approx')}.f16x2 "
                                                              f"{q()}, {q()}",
            f"cvt.{self.pick('rn', 'rz', 'rn.relu')}.f16.f32 {h()}, {f()}", f"cvt.f32.f16 {f()}, {h()}",
            f"cvt.{self.pick('rn', 'rz', 'rn.relu')}.bf16.f32 {k()}, {f()}", f"cvt.f32.bf16 {f()}, {k()}",
            f"cvt.{self.pick('rn', 'rz', 'rn.relu')}.f16x2.f32 {q()}, {f()}, {f()}",
            f"cvt.{self.pick('rn', 'rz', 'rn.relu')}.bf16x2.f32 {t()}, {f()}, {f()}",
            f"cvt.rni.f16.f16 {h()}, {h()}", f"cvt.rzi.s32.f16 {self.r()}, {h()}", f"cvt.rn.f16.s32 {h()}, {self.r()}",
            f"cvt.{self.pick('rna', 'rn', 'rz', 'rn.relu')}.tf32.f32 %u3, {f()}", f"cvt.rp.f16.u32 {h()}, {self.r()}",
            f"setp.{compare}.f16 {self.p()}, {h()}, {h()}", f"setp.{compare}.bf16 {self.p()}, {k()}, {k()}",
            f"setp.{compare}.f16x2 %p1|%p2, {q()}, {q()}", f"set.{compare}.f16.f16 {h()}, {h()}, {h()}",
            f"set.{compare}.bf16x2.bf16x2 {t()}, {t()}, {t()}", f"set.{compare}.u32.f16x2 {self.r()}, {q()}, {q()}",
        ))  # fmt: skip

    def _new_integer(self) -> None:
        self.add(self.pick(
            f"dp4a.{self.pick('s32.s32', 'u32.s32', 'u32.u32')} {self.r()}, {self.r()}, {self.rs()}, {self.r()}",
            f"dp2a.{self.pick('lo', 'hi')}.{self.pick('s32.u32', 'u32.u32')} {self.r()}, {self.r()}, "
            f"{self.r()}, {self.r()}",
            f"bmsk.{self.pick('clamp', 'wrap')}.b32 {self.r()}, {self.r()}, {self.rs()}",
            f"lop3.b32 {self.r()}, {self.r()}, {self.r()}, {self.rs()}, {self.rng.integers(256)}",
            f"{self.pick('add', 'min', 'max')}.{self.pick('s16x2', 'u16x2')} {self.r()}, {self.r()}, {self.r()}",
            f"{self.pick('min', 'max')}.relu.s32 {self.r()}, {self.r()}, {self.rs()}",
            f"testp.{self.pick('finite', 'infinite', 'normal', 'subnormal', 'notanumber')}.f32 {self.p()}, {self.f()}",
            f"set.{self.pick('lt', 'ge')}.{self.pick('u32', 's32')}.s32 {self.r()}, {self.r()}, {self.rs()}",
            f"mov.u32 {self.r()}, %clock", f"and.b32 {self.r()}, {self.r()}, 0x01010101",
        ))  # fmt: skip

    def _match(self) -> None:
        self.lines.append(f"and.b32 %r10, {self.r()}, 3;")
        self.add(self.pick(
            f"match.any.sync.b32 {self.r()}, %r10, -1", f"match.all.sync.b32 {self.r()}|{self.p()}, %r10, -1",
            f"match.any.sync.b64 {self.r()}, {self.w()}, -1", f"elect.sync {self.r()}|{self.p()}, -1",
        ), guard=False)  # fmt: skip

    def _call(self) -> None:
        n = self.label()
        if self.rng.random() < 0.5:
            self.lines.append(f"{{ .param .b32 a{n}; .param .b64 b{n}; .param .b32 r{n};")
            self.lines.append(f"st.param.b32 [a{n}], {self.r()}; st.param.b64 [b{n}], {self.w()};")
            self.add(f"call (r{n}), turn, (a{n}, b{n})")
            self.lines.append(f"ld.param.b32 {self.r()}, [r{n}];")
        else:
            self.lines.append(f"{{ .param .b64 b{n}; .param .b64 r{n}; st.param.b64 [b{n}], {self.w()};")
            self.add(f"call (r{n}), twice, (b{n})", guard=False)
            self.lines.append(f"ld.param.b64 {self.w()}, [r{n}];")
        self.lines.append("}")

    def _jump(self) -> None:
        if self.depth > 2:
            return self._new_integer()
        self.depth += 1
        cases, end = [self.label() for _ in range(self.rng.integers(2, 5))], self.label()
        table = self.label()
        targets = [*cases, str(self.rng.choice(cases)), end]
        self.lines.append(f"rem.u32 %r10, {self.r()}, {len(targets)};")
        self.lines.append(f"{table}: .branchtargets {', '.join(targets)};")
        self.add(f"brx.idx %r10, {table}")
        for case in cases:
            self.lines.append(f"{case}:")
            self._statements(int(self.rng.integers(1, 3)))
            if self.rng.random() < 0.8:
                self.lines.append(f"bra.uni {end};")
        self.lines.append(f"{end}:")
        self.depth -= 1
        return None

    def _copy(self) -> None:
        size = int(self.rng.choice([4, 8, 16]))
        self.lines.append(f"and.b32 %r10, {self.r()}, 508; mul.wide.u32 %rd8, %r10, 4; add.s64 %rd8, %rd1, %rd8;")
        self.lines.append(f"and.b64 %rd8, %rd8, {-size}; shl.b32 %r10, %r8, 4;")
        kind = self.rng.integers(4)
        if kind == 0:
            self.lines.append(f"and.b32 %r11, {self.r()}, 1; mul.lo.u32 %r11, %r11, {size};")
        extra = ("", ", %r11", f", {self.p()}", ", 0")[kind] if kind else ", %r11"
        self.add(f"cp.async.ca.shared.global [%r10], [%rd8], {size}{extra}")
        self.lines.append("cp.async.commit_group; cp.async.wait_group 0;")
        self.add(f"ld.shared.u32 {self.r()}, [%r10+{4 * self.rng.integers(size // 4)}]")

    def _generic(self) -> None:
        """Addresses of shared, local or global memory that do not say so; a thread's own words."""
        where = self.rng.integers(3)
        self.lines.append(
            (
                "shl.b32 %r10, %r8, 4; cvt.u64.u32 %rd8, %r10; cvta.shared.u64 %rd8, %rd8;",
                "mov.u64 %rd8, l; cvta.local.u64 %rd8, %rd8;",
                "and.b32 %r10, %r9, 255; mul.wide.u32 %rd8, %r10, 8; add.s64 %rd8, %rd1, %rd8;",
            )[where]
        )
        if where < 2:
            self.add(f"st.u32 [%rd8+{4 * self.rng.integers(4)}], {self.r()}")
            self.add(f"st.v2.u32 [%rd8+{8 * self.rng.integers(2)}], {{{self.r()}, {self.r()}}}")
        self.add(f"ld.{self.pick('u32', 'u16', 's8')} {self.r()}, [%rd8+4]")
        self.add(f"ld.v2.u32 {{{self.r()}, {self.r()}}}, [%rd8]")

    def _matrix(self) -> None:
        """Only with whole warps, outside divergent code."""
        if self.depth or not self.converged:
            return self._half()
        q, t, f, r = self.q, self.t, self.f, self.r
        four = "{{{}, {}, {}, {}}}".format
        self.lines.append("shl.b32 %r10, %r8, 4;")
        self.lines.append(self.pick(
            f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {four('%f1', '%f2', '%f3', '%f4')}, "
            f"{four(q(), q(), q(), q())}, {{{q()}, {q()}}}, {four(f(), f(), f(), f())};",
            f"mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {{%q1, %q2}}, {{{q()}, {q()}}}, {{{q()}}}, "
            f"{{{q()}, {q()}}};",
            f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {four('%f1', '%f2', '%f3', '%f4')}, "
            f"{four(t(), t(), t(), t())}, {{{t()}, {t()}}}, {four(f(), f(), f(), f())};",
            f"mov.b32 %u1, {f()}; mov.b32 %u2, {f()}; "
            f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {four('%f2', '%f3', '%f4', '%f5')}, "
            f"{four('%u1', '%u3', '%u2', '%u3')}, {{%u2, %u1}}, {four(f(), f(), f(), f())};",
            f"mma.sync.aligned.m16n8k{self.pick('32', '32')}.row.col.s32.s8.u8.s32 {four('%r1', '%r2', '%r3', '%r4')}, "
            f"{four(r(), r(), r(), r())}, {{{r()}, {r()}}}, {four(r(), r(), r(), r())};",
            f"ldmatrix.sync.aligned.m8n8.x4{self.pick('', '.trans')}.shared.b16 "
            f"{four('%r1', '%r2', '%r3', '%r4')}, [%r10];",
            f"ldmatrix.sync.aligned.m8n8.x2{self.pick('', '.trans')}.shared.b16 {{%r1, %r2}}, [%r10];",
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r10];",
        ))  # fmt: skip
        return None
