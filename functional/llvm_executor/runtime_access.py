"""Loads and stores, as LLVM IR text: one helper a space and size with fast paths, and the general way. Among the fast
paths are half warps that are regular: what thread blocks of 16 threads width do.
"""

from __future__ import annotations

from functional.llvm_executor.runtime_memory import SIZES, SPACES, empty, get, record, splat


def _half_passes(prefix: str, width: int) -> str:
    """Bank passes of two words (width 0) or runs of 16 words (width 64): 2 if both use a bank for different words."""
    p = f"%{prefix}."
    return f"""  {p}gap = sub i64 %second, %first
  {p}back = sub i64 %first, %second
  {p}span = call i64 @llvm.smax.i64(i64 {p}gap, i64 {p}back)
  {p}close = icmp ule i64 {p}span, {width}
  {p}bank = and i64 {p}gap, 127
  {p}apart = icmp {"eq" if width else "ne"} i64 {p}bank, {width}
  {p}easy = or i1 {p}close, {p}apart
  {p}passes = select i1 {p}easy, i8 1, i8 2
  call void @conflict(ptr %ctx, i8 {p}passes)
"""


def _recognise(bits: int, bounds: str) -> str:
    """IR that goes on at halves.load with %second, %is.flat if the pattern is there, else at general."""
    size = bits // 8
    both = ", ".join(f"i32 {i // 16 * 16}" for i in range(32))
    steps = ", ".join(f"i64 {i % 16 * size}" for i in range(32))
    return f"""halves:
  %whole = icmp eq i32 %mask, -1
  br i1 %whole, label %halves.go, label %general
halves.go:
  %second = extractelement <32 x i64> %address, i32 16
  %pair0 = insertelement <32 x i64> poison, i64 %first, i32 0
  %pair1 = insertelement <32 x i64> %pair0, i64 %second, i32 16
  %pair = shufflevector <32 x i64> %pair1, <32 x i64> poison, <32 x i32> <{both}>
  %apart.h = sub <32 x i64> %address, %pair
  %flat = icmp ne <32 x i64> %apart.h, zeroinitializer
  %flat.bits = bitcast <32 x i1> %flat to i32
  %steps.h = icmp ne <32 x i64> %apart.h, <{steps}>
  %steps.bits = bitcast <32 x i1> %steps.h to i32
  %is.flat = icmp eq i32 %flat.bits, 0
  %is.steps = icmp eq i32 %steps.bits, 0
  %is.either = or i1 %is.flat, %is.steps
  br i1 %is.either, label %halves.check, label %general
halves.check:
{bounds}  %hlow0 = or i64 %first, %second
  %hlow = and i64 %hlow0, {size - 1}
  %hal = icmp eq i64 %hlow, 0
  %hok = and i1 %hin, %hal
  br i1 %hok, label %halves.load, label %general
"""


def halves(space: str, bits: int) -> str:
    """All lanes active and each half warp at one address, or at successive ones: blocks that are 16 threads wide."""
    base, limit = SPACES[space]
    size = bits // 8
    if limit is None:
        bounds = f"""  %hs0 = add i64 %first, {16 * size}
  %hs1 = add i64 %second, {16 * size}
  %hin0 = call i1 @in_region_{space}(ptr %ctx, i64 %first, i64 %hs0)
  %hin1 = call i1 @in_region_{space}(ptr %ctx, i64 %second, i64 %hs1)
  %hin = and i1 %hin0, %hin1
"""
    else:
        bounds = get("hlimit", limit) + f"""  %hmost = call i64 @llvm.umax.i64(i64 %first, i64 %second)
  %hs = add i64 %hmost, {16 * size}
  %hin = icmp ule i64 %hs, %hlimit
"""  # fmt: skip
    log = record(space, "%address", str(size))
    flat_log, line_log = (_half_passes("f", 0), _half_passes("s", 64)) if (space, size) == ("shared", 4) else (log, log)
    half = f"<16 x i{bits}>"
    both = ", ".join(f"i32 {i // 16 * 16}" for i in range(32))
    join = ", ".join(f"i32 {i}" for i in range(32))
    return (
        _recognise(bits, bounds)
        + f"""halves.load:
{get("hbase", base)}  %ha0 = add i64 %hbase, %first
  %ha1 = add i64 %hbase, %second
  %hp0 = inttoptr i64 %ha0 to ptr
  %hp1 = inttoptr i64 %ha1 to ptr
  br i1 %is.flat, label %halves.flat, label %halves.steps
halves.flat:
{flat_log.replace("%window", "%window.f")}  %f0 = load i{bits}, ptr %hp0, align 1
  %f1 = load i{bits}, ptr %hp1, align 1
  %fv0 = insertelement <32 x i{bits}> poison, i{bits} %f0, i32 0
  %fv1 = insertelement <32 x i{bits}> %fv0, i{bits} %f1, i32 16
  %fv = shufflevector <32 x i{bits}> %fv1, <32 x i{bits}> poison, <32 x i32> <{both}>
  ret <32 x i{bits}> %fv
halves.steps:
{line_log}  %g0 = load {half}, ptr %hp0, align 1
  %g1 = load {half}, ptr %hp1, align 1
  %gvv = shufflevector {half} %g0, {half} %g1, <32 x i32> <{join}>
  ret <32 x i{bits}> %gvv
"""
    )


def _act(bits: int, stores: bool) -> tuple[str, str]:
    """IR that accesses the pointers %gp and returns, and IR that does so with host addresses."""
    kind = f"<32 x i{bits}>"
    wide = max(bits, 32)
    if stores:
        pointers = "<32 x ptr> align 1 %gp, <32 x i1> %glanes"
        act = f"""  call void @llvm.masked.scatter.v32i{bits}.v32p0({kind} %value, {pointers})
  ret void"""
        slow = f"  call void @scatter_{bits}(<32 x i64> %host, {kind} %value, i32 %mask)\n  ret void"
    else:
        narrow = f"  %gt = trunc <32 x i32> %gv to {kind}\n  ret {kind} %gt" if bits < 32 else f"  ret {kind} %gv"
        word = f"<32 x i{wide}>"
        operands = f"<32 x ptr> align 1 %gp, <32 x i1> splat (i1 true), {word} poison"
        act = f"""  %gv = call {word} @llvm.masked.gather.v32i{wide}.v32p0({operands})
{narrow}"""
        slow = f"  %v2 = call {kind} @gather_{bits}(<32 x i64> %host, i32 %mask)\n  ret {kind} %v2"
    return act, slow


def _general(space: str, bits: int, stores: bool) -> str:
    """Any addresses: those of one region by 32-bit offsets, which gather twice as fast; others by host addresses."""
    base, limit = SPACES[space]
    size = bits // 8
    if limit is None:
        bounds = f"""  %gstop = add i64 %high, {size}
  %one.region = call i1 @in_region_{space}(ptr %ctx, i64 %low, i64 %gstop)
"""
    else:
        bounds = get("glimit", limit) + f"""  %gstop = add i64 %high, {size}
  %one.region = icmp ule i64 %gstop, %glimit
"""  # fmt: skip
    act, slow = _act(bits, stores)
    keep = ""
    if space == "stored":
        keep = "  call void @keep_span(ptr %ctx, i64 %low, i64 %gstop, <32 x i64> %named, i32 %mask)\n"
    return f"""  %glanes = bitcast i32 %mask to <32 x i1>
{splat("gfirst", "i64", "%first")}  %named = select <32 x i1> %glanes, <32 x i64> %address, <32 x i64> %gfirst
  %low = call i64 @llvm.vector.reduce.umin.v32i64(<32 x i64> %named)
  %high = call i64 @llvm.vector.reduce.umax.v32i64(<32 x i64> %named)
{bounds}  %bits.off = and <32 x i64> %named, splat (i64 {size - 1})
  %off = icmp ne <32 x i64> %bits.off, zeroinitializer
  %off.lanes = bitcast <32 x i1> %off to i32
  %straight = icmp eq i32 %off.lanes, 0
  %span = sub i64 %high, %low
  %near = icmp ult i64 %span, 2147483647
  %good0 = and i1 %one.region, %straight
  %good = and i1 %good0, %near
  br i1 %good, label %together.go, label %slow
together.go:
{keep}{record(space, "%named", str(size))}{get("gbase", base)}  %origin.g = add i64 %gbase, %low
{splat("lows.g", "i64", "%low")}  %distance = sub <32 x i64> %named, %lows.g
  %distance32 = trunc <32 x i64> %distance to <32 x i32>
  %gb = inttoptr i64 %origin.g to ptr
  %gp = getelementptr i8, ptr %gb, <32 x i32> %distance32
{act}
slow:
  %host = call <32 x i64> @check_{space}(ptr %ctx, <32 x i64> %address, i32 %mask, i64 {size})
{slow}"""


def _one(space: str, bits: int, bounds: str, log_one: str) -> str:
    """A load of one address by all lanes, and the half warps behind it."""
    base, size, kind = SPACES[space][0], bits // 8, f"<32 x i{bits}>"
    one_bounds = bounds.replace("%stop", "%onestop")
    for own in ("%limit", "%inside", "%a ", "%a,", "%b\n", "%b ="):
        one_bounds = one_bounds.replace(own, "%o." + own[1:])
    return f"""same:
{splat("firsts", "i64", "%first")}  %ne2 = icmp ne <32 x i64> %address, %firsts
  %ne2b = bitcast <32 x i1> %ne2 to i32
  %apart = and i32 %ne2b, %mask
  %together = icmp eq i32 %apart, 0
  br i1 %together, label %one, label %halves
one:
  %onestop = add i64 %first, {size}
{one_bounds}  %r1 = and i64 %first, {size - 1}
  %al1 = icmp eq i64 %r1, 0
  %ok1 = and i1 %o.inside, %al1
  br i1 %ok1, label %one.go, label %general
one.go:
{log_one}{get("base1", base)}  %h1 = add i64 %base1, %first
  %p1 = inttoptr i64 %h1 to ptr
  %s1 = load i{bits}, ptr %p1, align 1
{splat("s", f"i{bits}", "%s1")}  ret {kind} %s
{halves(space, bits)}"""


def _bounds(space: str) -> str:
    """IR of %inside: do bytes %first to %stop - 1 lie in one region, or below the limit of the space?"""
    limit = SPACES[space][1]
    if limit is None:
        return f"  %inside = call i1 @in_region_{space}(ptr %ctx, i64 %first, i64 %stop)\n"
    return f"""{get("limit", limit)}  %a = icmp ule i64 %stop, %limit
  %b = icmp ult i64 %first, %stop
  %inside = and i1 %a, %b
"""


def _logs(space: str, size: int) -> tuple[str, str]:
    """IR that logs lanes one behind the other (with or without gaps between the active ones), and a single address."""
    gaps = record(space, "%address", str(size))
    if space == "shared" and size == 8:
        return gaps, "  call void @conflict(ptr %ctx, i8 1)\n"
    run, one = "  call void @conflict(ptr %ctx, i8 1)\n", "  call void @conflict(ptr %ctx, i8 1)\n"
    if space != "shared":
        run = "  call void @record_range(ptr %ctx, i64 %first, i64 %stop)\n"
        one = "  call void @record_one(ptr %ctx, i64 %first)\n"
    return f"""  br i1 %run, label %log.run, label %log.gaps
log.run:
{run}  br label %logged
log.gaps:
{gaps}  br label %logged
logged:
""", one  # fmt: skip


def access(space: str, bits: int, stores: bool) -> str:
    """`ld_SPACE_BITS` or `st_SPACE_BITS` (global and shared)."""
    region = "stored" if stores and space == "global" else space
    base, size, kind = SPACES[space][0], bits // 8, f"<32 x i{bits}>"
    bounds, (logs, log_one) = _bounds(region), _logs(space, size)
    if stores:
        head = f"define void @st_{space}_{bits}(ptr %ctx, <32 x i64> %address, {kind} %value, i32 %mask) #0 {{"
        nothing = done = "  ret void"
        keep = "  call void @keep_range(ptr %ctx, i64 %first, i64 %stop)\n" if region == "stored" else ""
        whole = f"""{keep}  %lanes = bitcast i32 %mask to <32 x i1>
  call void @llvm.masked.store.v32i{bits}.p0({kind} %value, ptr align 1 %p, <32 x i1> %lanes)
"""
    else:
        head = f"define {kind} @ld_{space}_{bits}(ptr %ctx, <32 x i64> %address, i32 %mask) #0 {{"
        nothing, done = f"  ret {kind} zeroinitializer", f"  ret {kind} %v"
        whole = f"  %v = load {kind}, ptr %p, align 1\n"
    return f"""
{head}
entry:
  %some = icmp ne i32 %mask, 0
  br i1 %some, label %go, label %none
none:
{empty(space)}{nothing}
{_contiguous(size, bounds, "general" if stores else "same")}{logs}{get("base", base)}  %h = add i64 %base, %origin
  %p = inttoptr i64 %h to ptr
{whole}{done}
{"" if stores else _one(space, bits, bounds, log_one)}general:
{_general(region, bits, stores)}
}}
"""


def _contiguous(size: int, bounds: str, other: str) -> str:
    """IR that goes on if active lane i names %origin + i * size, all of it valid; else at `other`, or at general."""
    steps = ", ".join(f"i64 {i * size}" for i in range(32))
    return f"""go:
  %f = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %g = call i32 @llvm.ctlz.i32(i32 %mask, i1 true)
  %l = sub i32 31, %g
  %first = extractelement <32 x i64> %address, i32 %f
  %f64 = zext i32 %f to i64
  %l64 = zext i32 %l to i64
  %fb = mul i64 %f64, {size}
  %origin = sub i64 %first, %fb
{splat("origins", "i64", "%origin")}  %expected = add <32 x i64> %origins, <{steps}>
  %ne = icmp ne <32 x i64> %address, %expected
  %neb = bitcast <32 x i1> %ne to i32
  %wrong = and i32 %neb, %mask
  %contiguous = icmp eq i32 %wrong, 0
  br i1 %contiguous, label %line, label %{other}
line:
  %l1 = add i64 %l64, 1
  %lb = mul i64 %l1, {size}
  %stop = add i64 %origin, %lb
{bounds}  %r = and i64 %first, {size - 1}
  %aligned = icmp eq i64 %r, 0
  %ok = and i1 %inside, %aligned
  br i1 %ok, label %fast, label %general
fast:
  %m0 = lshr i32 %mask, %f
  %m1 = add i32 %m0, 1
  %m2 = and i32 %m0, %m1
  %run = icmp eq i32 %m2, 0
"""


def text() -> str:
    """All access helpers."""
    return "".join(access(s, bits, stores) for s in ("global", "shared") for bits in SIZES for stores in (False, True))


def gather(bits: int) -> str:
    """Plain gather and scatter at host addresses. Narrow words are gathered as 32 bits: every storage is padded."""
    kind = f"<32 x i{bits}>"
    wide = max(bits, 32)
    word = f"<32 x i{wide}>"
    narrow = f"  %n = trunc <32 x i32> %v to {kind}\n  ret {kind} %n" if bits < 32 else f"  ret {kind} %v"
    return f"""
define {kind} @gather_{bits}(<32 x i64> %host, i32 %mask) #0 {{
  %lanes = bitcast i32 %mask to <32 x i1>
  %p = inttoptr <32 x i64> %host to <32 x ptr>
  %v = call {word} @llvm.masked.gather.v32i{wide}.v32p0(<32 x ptr> align 1 %p, <32 x i1> %lanes, {word} zeroinitializer)
{narrow}
}}
define void @scatter_{bits}(<32 x i64> %host, {kind} %v, i32 %mask) #0 {{
  %lanes = bitcast i32 %mask to <32 x i1>
  %p = inttoptr <32 x i64> %host to <32 x ptr>
  call void @llvm.masked.scatter.v32i{bits}.v32p0({kind} %v, <32 x ptr> align 1 %p, <32 x i1> %lanes)
  ret void
}}
"""


def gathers() -> str:
    """A gather and a scatter of each word size."""
    return "".join(gather(bits) for bits in SIZES)
