"""Random kernels of today's instructions: clusters, bulk and tensor copies, products of warpgroups, and PTX that only
the array executor knows. Straight lines of statements by 128 threads a block, without data races."""

from __future__ import annotations

import numpy as np
from ptx_kernels import module

from functional.launches.launch import Launch, Pointer, make_launch
from functional.launches.memory import Memory
from functional.launches.views import TensorMap
from functional.programs.link import link

THREADS, AREA = (
    128,
    2048,
)  # words each thread may overwrite lie in the first area of shared memory, copies in the second
FOUR = "{{{}, {}, {}, {}}}".format


class HopperText:
    """One random kernel; `text` is its module. Registers %r1 to %r7 hold values, one word of them goes out."""

    def __init__(self, seed: int, size: int, cluster: int) -> None:
        self.rng, self.cluster, self.phase, self.lines = np.random.default_rng(seed), cluster, 0, list[str]()
        makers = [
            self._exchange, self._bulk, self._store, self._tensor, self._product, self._quarters, self._registers,
            self._registers, self._matrices, self._several, self._asynchronous, self._sparse, self._groups,
            self._tensor_memory,
        ]  # fmt: skip
        for _ in range(size):
            makers[self.rng.integers(len(makers))]()

    def pick(self, *choices: str) -> str:
        return str(self.rng.choice(choices))

    def r(self) -> str:
        return f"%r{self.rng.integers(1, 8)}"

    def add(self, *lines: str) -> None:
        self.lines += lines

    def _rank(self) -> str:
        """%n1: another block's rank, or the own one; every block has another one."""
        step = self.rng.integers(self.cluster)
        return f"add.u32 %n1, %rank, {step}; rem.u32 %n1, %n1, {self.cluster};"

    def _exchange(self) -> None:
        far = self.pick(
            "mapa.shared::cluster.u32 %n2, %own, %n1; st.shared::cluster.u32 [%n2], {v};",
            "cvt.u64.u32 %w1, %own; cvta.shared.u64 %w1, %w1; mapa.u64 %w2, %w1, %n1; st.u32 [%w2], {v};",
            "mapa.shared::cluster.u32 %n2, %own, %n1; atom.shared::cluster.exch.b32 %n3, [%n2], {v};",
        ).format(v=self.r())
        self.add(self._barrier(), self._rank(), far, self._barrier(), f"ld.shared.u32 {self.r()}, [%own];")

    def _barrier(self) -> str:
        return "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"

    def _expect(self, size: int) -> str:
        return f"@%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {size};"

    def _arrived(self) -> None:
        """All wait for what comes; each reads a word of it."""
        n, self.phase = len(self.lines), self.phase ^ 1
        self.add(
            f"W{n}: mbarrier.try_wait.parity.shared.b64 %p1, [%bar], {self.phase ^ 1}; @!%p1 bra W{n};",
            f"ld.shared.u32 {self.r()}, [%own+{AREA}]; bar.sync {self.rng.integers(4)}, {THREADS};",
        )

    def _bulk(self) -> None:
        size, start = 16 * int(self.rng.integers(1, 64)), 16 * int(self.rng.integers(0, 32))
        space = self.pick("shared::cluster", "shared::cta")
        self.add(self._expect(size), f"add.u64 %w1, %in, {start}; add.u32 %n1, %base, {AREA};",
                 f"@%first cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes "
                 f"[%n1], [%w1], {size}, [%bar];")  # fmt: skip
        self._arrived()

    def _store(self) -> None:
        """The own block's words of the output; each statement another kind of arithmetic on them."""
        size = 16 * int(self.rng.integers(1, 32))
        form = self.pick(
            "cp.async.bulk.global.shared::cta.bulk_group", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32",
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s32",
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.xor.b32",
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.u32",
        )  # fmt: skip
        self.add(f"st.shared.u32 [%own], {self.r()}; bar.sync 0; @%first {form} [%out], [%base], {size};",
                 "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; bar.sync 0;")  # fmt: skip

    def _tensor(self) -> None:
        x, y = self.rng.integers(-40, 70), self.rng.integers(-6, 20)
        self.add(self._expect(1024), f"mov.s32 %n2, {x}; mov.s32 %n3, {y}; add.u32 %n1, %base, {AREA};",
                 "@%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%n1], [%map, {%n2, %n3}], [%bar];")  # fmt: skip
        self._arrived()

    def _several(self) -> None:
        """The first block copies to those of a mask; all expect what they get."""
        if self.cluster == 1:
            return self._bulk()
        size, mask = 16 * int(self.rng.integers(1, 16)), int(self.rng.integers(1, 1 << self.cluster))
        self.add(f"shr.u32 %n2, {mask}, %rank; and.b32 %n2, %n2, 1; mul.lo.u32 %n2, %n2, {size};",
                 "@%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], %n2;", self._barrier(),
                 f"setp.eq.u32 %p2, %rank, 0; and.pred %p2, %p2, %first; mov.u16 %h1, {mask};",
                 f"add.u32 %n1, %base, {AREA};",
                 "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 f"[%n1], [%in], {size}, [%bar], %h1;")  # fmt: skip
        self._arrived()
        self.add(self._barrier())
        return None

    def _asynchronous(self) -> None:
        self.add(self._expect(4), self._barrier(), self._rank(), f"add.u32 %n2, %base, {AREA};",
                 "mapa.shared::cluster.u32 %n2, %n2, %n1; mapa.shared::cluster.u32 %n3, %bar, %n1;",
                 f"@%first st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%n2], "
                 f"{self.r()}, [%n3];")  # fmt: skip
        self._arrived()
        self.add(self._barrier())

    def _product(self) -> None:
        """Of bytes or halves as they lie in shared memory; NaNs are made one."""
        swizzle, start = self.rng.integers(4), 16 * int(self.rng.integers(64))
        descriptor = start >> 4 | 8 << 16 | 16 << 32 | int(swizzle) << 62
        kind = self.pick("k32.s32.s8.u8", "k32.s32.u8.u8", "k16.f32.f16.f16", "k8.f32.tf32.tf32")
        numbers = "" if "s32" in kind else f", 1, -1{', 0, 1' if 'f16' in kind else ''}"
        d = FOUR(*(f"%r{n}" for n in self.rng.permutation(range(1, 8))[:4]))
        self.add(f"st.shared.u32 [%own], {self.r()}; bar.sync 0; mov.u64 %w1, {descriptor}; wgmma.fence.sync.aligned;",
                 f"wgmma.mma_async.sync.aligned.m64n8{kind} {d}, %w1, %w1, {self.pick('', '!')}%even{numbers};",
                 "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; bar.sync 0;")  # fmt: skip

    def _quarters(self) -> None:
        left, right = self.pick("row", "col"), self.pick("row", "col")
        c = FOUR(*(self.r() for _ in range(4)))
        self.add(f"mma.sync.aligned.m8n8k4.{left}.{right}.f16.f16.f16.f16 {FOUR('%r1', '%r2', '%r3', '%r4')}, "
                 f"{{{self.r()}, {self.r()}}}, {{{self.r()}, {self.r()}}}, {c};")  # fmt: skip

    def _sparse(self) -> None:
        """A quad's metadata come from one to four of its lanes."""
        shape, a, b, selectors = self.rng.choice(
            np.array([("m16n8k32", "s8", "u8", 2), ("m16n8k64", "u4", "s4", 2), ("m16n8k32", "u8", "u8", 2)], object)
        )
        inputs = [f"{{{', '.join(self.r() for _ in range(n))}}}" for n in (2, 2, 4)]
        d = FOUR(*(f"%r{n}" for n in self.rng.permutation(range(1, 8))[:4]))
        self.add(f"mma.sp.sync.aligned.{shape}.row.col{self.pick('', '.satfinite')}.s32.{a}.{b}.s32 {d}, "
                 f"{', '.join(inputs)}, {self.r()}, {self.rng.integers(selectors)};")  # fmt: skip

    def _groups(self) -> None:
        """Each thread copies words of the input over its own place, some of them not at all."""
        size = int(self.rng.choice([4, 8, 16]))
        self.add(f"and.b32 %n1, {self.r()}, 1008; cvt.u64.u32 %w1, %n1; add.u64 %w1, %in, %w1;",
                 f"mul.lo.u32 %n2, %t, 16; add.u32 %n2, %n2, %base; add.u32 %n2, %n2, {2 * AREA};",
                 f"and.b32 %n3, {self.r()}, {size}; cp.async.ca.shared.global [%n2], [%w1], {size}"
                 f"{self.pick('', ', %n3')}; cp.async.commit_group; cp.async.wait_group 0;",
                 f"ld.shared.u32 {self.r()}, [%n2];")  # fmt: skip

    def _tensor_memory(self) -> None:
        """Words go into columns of tensor memory and come back in another shape; a product of 64 x 8 in between."""
        n, start = len(self.lines), int(self.rng.integers(64))
        descriptor = start | 8 << 16 | 16 << 32 | 1 << 46 | int(self.rng.choice([0, 2, 4, 6])) << 61
        kind, types = self.rng.choice(np.array([("i8", 2 << 4 | 1 << 10), ("i8", 2 << 4 | 1 << 7)], object))
        word = int(types) | 1 << 17 | 4 << 24
        to, back = (FOUR(*(f"%r{i}" for i in self.rng.permutation(range(1, 8))[:4])) for _ in range(2))
        shape = self.pick("32x32b.x4", "16x64b.x4", "16x128b.x2", "16x256b.x1")
        held, store = f"[%base+{3 * AREA - 16}]", "tcgen05.st.sync.aligned.32x32b.x4.b32"
        self.add("setp.lt.u32 %p1, %t, 32; bar.sync 0;", f"@!%p1 bra A{n};",
                 f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 {held}, 32;", f"A{n}: bar.sync 0;",
                 f"ld.shared.u32 %n1, {held}; and.b32 %n2, %t, 96; shl.b32 %n2, %n2, 16;",
                 f"add.u32 %n2, %n1, %n2; st.shared.u32 [%own], {self.r()};",
                 f"{store} [%n2], {to}; {store} [%n2+4], {to}; tcgen05.wait::st.sync.aligned; bar.sync 0;",
                 f"mov.u64 %w1, {descriptor}; mov.u32 %n3, {word};",
                 f"@%first tcgen05.mma.cta_group::1.kind::{kind} [%n1], %w1, %w1, %n3, {self.pick('', '!')}%even;",
                 f"bar.sync 0; tcgen05.ld.sync.aligned.{shape}.b32 {back}, [%n2];",
                 "tcgen05.wait::ld.sync.aligned; bar.sync 0;", f"@!%p1 bra B{n};",
                 "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %n1, 32;", f"B{n}: bar.sync 0;")  # fmt: skip

    def _matrices(self) -> None:
        """A warp's 512 bytes, of which only it reads and writes."""
        self.add("and.b32 %n1, %t, 31; shl.b32 %n1, %n1, 4; shr.u32 %n2, %t, 5; shl.b32 %n2, %n2, 9;",
                 f"add.u32 %n1, %n1, %n2; add.u32 %n1, %n1, %base; add.u32 %n1, %n1, {2 * AREA};",
                 f"cvt.u64.u32 %w1, %n1; cvta.shared.u64 %w1, %w1; {self._matrix('stmatrix', '[%w1], {}')}",
                 self._matrix("ldmatrix", "{}, [%w1]"))  # fmt: skip

    def _matrix(self, name: str, operands: str) -> str:
        values = FOUR(*(f"%r{n}" for n in self.rng.permutation(range(1, 8))[:4]))
        return f"{name}.sync.aligned.m8n8.x4{self.pick('', '.trans')}.b16 {operands.format(values)};"

    def _registers(self) -> None:
        r = self.r
        self.add(self.pick(
            f"{self.pick('vadd', 'vsub', 'vabsdiff', 'vmin', 'vmax')}.{self.pick('s32', 'u32')}.s32.u32"
            f"{self.pick('', '.sat')}.{self.pick('add', 'min', 'max')} {r()}, {r()}, {r()}, {r()};",
            f"vshr.s32.s32.u32.{self.pick('clamp', 'wrap')} {r()}, {r()}, {r()};",
            f"mov.v4.u32 {FOUR('%r1', '%r2', '%r3', '%r4')}, {FOUR(r(), r(), r(), r())};",
            f"elect.sync {r()}|%p2, -1; @%p2 add.u32 {r()}, {r()}, 1;", f"mad.lo.u32 {r()}, {r()}, {r()}, {r()};",
            f"mov.u32 {r()}, %cluster_ctarank; mov.u32 {r()}, %clusterid.x; mov.u32 {r()}, %cluster_nctarank;",
            f"getctarank.shared::cluster.u32 {r()}, %own; setmaxnreg.inc.sync.aligned.u32 64;",
            f"cvt.rn.satfinite.e4m3x2.f16x2 %h1, {r()}; cvt.rn.f16x2.e4m3x2 {r()}, %h1;",
        ))  # fmt: skip

    @property
    def text(self) -> str:
        shared = f".shared .align 1024 .b8 s[{3 * AREA}]; .shared .align 8 .b64 b;"
        return f"""{shared}\n.entry k(.param .u64 a, .param .u64 o, .param .align 64 .b8 m[128]) {{
 .reg .b32 %r<8>, %n<4>, %t, %own, %base, %bar, %rank; .reg .b64 %w<4>, %in, %out, %map;
 .reg .pred %p<3>, %first, %even; .reg .b16 %h<2>;
 ld.param.u64 %in, [a]; ld.param.u64 %out, [o]; mov.u64 %map, m; cvta.param.u64 %map, %map;
 mov.u32 %t, %tid.x; mov.u32 %base, s; mov.u32 %bar, b; shl.b32 %own, %t, 2; add.u32 %own, %own, %base;
 setp.eq.u32 %first, %t, 0; mov.u32 %rank, %cluster_ctarank; mov.u32 %n1, %ctaid.x;
 mul.wide.u32 %w1, %n1, {4 * THREADS + 512}; add.u64 %out, %out, %w1; and.b32 %n2, %rank, 1; setp.eq.u32 %even, %n2, 0;
 mad.lo.u32 %n1, %n1, {THREADS}, %t; mul.lo.u32 %r1, %n1, 2654435761; mov.u32 %r2, %t; not.b32 %r3, %r1;
 and.b32 %n3, %t, 127; mul.wide.u32 %w1, %n3, 4; add.u64 %w1, %in, %w1; ld.global.v2.u32 {{%r4, %r5}}, [%in];
 ld.global.u32 %r6, [%w1]; add.u32 %r7, %r6, %r1; mov.u32 %n1, 0;
 st.shared.u32 [%own], %n1; st.shared.u32 [%own+512], %r6; st.shared.u32 [%own+1024], %r1;
 st.shared.u32 [%own+1536], %r2; st.shared.u32 [%own+2048], %r6; st.shared.u32 [%own+2560], %r6;
 st.shared.u32 [%own+3072], %r1;
 st.shared.u32 [%own+3584], %r6; @%first mbarrier.init.shared.b64 [%bar], 1; {self._barrier()}
""" + "\n".join(self.lines) + f"""
 {self._barrier()} xor.b32 %r1, %r1, %r2; mad.lo.u32 %r1, %r1, 31, %r3; mad.lo.u32 %r1, %r1, 31, %r4;
 mad.lo.u32 %r1, %r1, 31, %r5; mad.lo.u32 %r1, %r1, 31, %r6; mad.lo.u32 %r1, %r1, 31, %r7; mul.wide.u32 %w1, %t, 4;
 add.u64 %w1, %out, %w1; st.global.u32 [%w1+512], %r1; ret; }}"""  # fmt: skip


def random_hopper_launch(seed: int, size: int, cluster: int) -> tuple[Launch, Memory]:
    """A launch of two clusters, and its memory."""
    parsed, rng, grid = module(HopperText(seed, size, cluster).text), np.random.default_rng(seed), 2 * cluster
    memory = Memory(parsed.variables)
    memory.allocate("a", 4096, rng.integers(0, 1 << 32, 1024, np.uint32))
    memory.allocate("o", (4 * THREADS + 512) * grid)
    wide = int(rng.choice([16, 32, 64]))
    swizzle = int(rng.choice([0, 2 * wide]))
    tensor = TensorMap("f16", (60, 15), (128,), (wide, 512 // wide), (), swizzle, buffer="a")
    arguments = [Pointer("a"), Pointer("o"), tensor]
    return make_launch(link(parsed, "k"), grid, THREADS, arguments, memory, cluster=cluster), memory
