"""The check that chunks of thread blocks, run at the same time, did not touch what another wrote, as LLVM IR text.

A line of global memory has a cell of eight u32 in the shadow: for each of its four sectors the chunk that wrote it,
then for each the chunk that read it. Numbers up to %base are those of earlier launches; %base + 1 stands for several
readers. Most lines lie in buffers that are only read: `written` says of a page whether its buffer is one that the first
chunk of the launch wrote to (when it looks at that chunk, `learn`, it makes the note itself). In others, a read is not
looked at further, and a write is a conflict.

A chunk that reads no buffer that is written need not be gone through: the stores that it noted are enough.
"""

from __future__ import annotations

from functional.traces.line_record import LINE_SHIFT, MORE, SECTOR_SHIFT

# The job: addresses and sizes of what races.Shadow passes, in this order, 8 bytes each
JOB = (
    "blocks", "block_offsets", "records", "record_offsets", "warps",  # the trace of a chunk
    "first", "writes",  # basic block -> its first access, access -> does it write
    "shadow", "written", "first_line", "lines", "id", "base", "learn",
)  # fmt: skip
STORES_JOB = ("stores", "count", "shadow", "first_line", "lines", "id", "base")  # where each store left its records
CLEAN, CONFLICT = 0, 1
PAGE_LINES = 1 << 12  # half a red zone of memory.py, so that no page holds bytes of two buffers


def _load(job: tuple[str, ...]) -> str:
    lines = []
    for position, name in enumerate(job):
        kind = "i64" if name in ("warps", "count", "first_line", "lines", "id", "base", "learn") else "ptr"
        lines.append(f"  %{name}.p = getelementptr i64, ptr %job, i64 {position}\n")
        lines.append(f"  %{name} = load {kind}, ptr %{name}.p, align 8\n")
    return "".join(lines)


def _splat(name: str, value: str) -> str:
    return (
        f"  %{name}.0 = insertelement <4 x i32> poison, i32 {value}, i32 0\n"
        f"  %{name} = shufflevector <4 x i32> %{name}.0, <4 x i32> poison, <4 x i32> zeroinitializer\n"
    )


def _element(name: str, array: str, index: str, kind: str = "i64", size: int = 8) -> str:
    at = f"  %{name}.p = getelementptr {kind}, ptr %{array}, i64 {index}\n"
    return at + f"  %{name} = load {kind}, ptr %{name}.p, align {size}\n"


def _others(name: str, cells: str) -> str:
    """IR of %name: sectors whose cell holds another chunk of this launch."""
    return (
        f"  %{name}.known = icmp ugt <4 x i32> {cells}, %bases\n  %{name}.else = icmp ne <4 x i32> {cells}, %ids\n"
        f"  %{name} = and <4 x i1> %{name}.known, %{name}.else\n"
    )


# IR of who wrote and who read the sectors of record %rec, line %relative, and of %sectors, those it names
_CELLS = f"""  %offset = shl i64 %relative, 5
  %cell = getelementptr i8, ptr %shadow, i64 %offset
  %cell.read = getelementptr i8, ptr %cell, i64 16
  %writers = load <4 x i32>, ptr %cell, align 4
  %readers = load <4 x i32>, ptr %cell.read, align 4
  %bits = lshr i32 %rec, {SECTOR_SHIFT}
  %four = trunc i32 %bits to i4
  %sectors = bitcast i4 %four to <4 x i1>
"""
# IR of %relative, the line of record %rec, and %global: is it one of global memory?
_LINE = f"""  %line32 = lshr i32 %rec, {LINE_SHIFT}
  %line = zext i32 %line32 to i64
  %relative = sub i64 %line, %first_line
  %global = icmp ult i64 %relative, %lines
"""
# IR that notes a write; %touched: sectors with which others had to do
_WRITE = """  %touched = or <4 x i1> %wrote, %read
  %writers.new = select <4 x i1> %sectors, <4 x i32> %ids, <4 x i32> %writers
  store <4 x i32> %writers.new, ptr %cell, align 4
"""
_STORES = f"""
define i32 @store_races(ptr %job) #0 {{
entry:
{_load(STORES_JOB)}  %id32 = trunc i64 %id to i32
  %base32 = trunc i64 %base to i32
{_splat("ids", "%id32")}{_splat("bases", "%base32")}  br label %store
store:
  %k = phi i64 [ 0, %entry ], [ %k1, %store.end ]
  %left = icmp ult i64 %k, %count
  br i1 %left, label %begin, label %clean
begin:
{_element("at", "stores", "%k", "ptr")}  %k1 = add i64 %k, 1
  br label %record
record:
  %p = phi ptr [ %at, %begin ], [ %p1, %record.end ]
  %rec = load i32, ptr %p, align 4
  %p1 = getelementptr i8, ptr %p, i64 4
{_LINE}  br i1 %global, label %touch, label %record.end
touch:
{_CELLS}{_others("wrote", "%writers")}{_others("read", "%readers")}{_WRITE}  %both = and <4 x i1> %touched, %sectors
  %both.bits = bitcast <4 x i1> %both to i4
  %races = icmp ne i4 %both.bits, 0
  br i1 %races, label %conflict, label %record.end
record.end:
  %more.bit = and i32 %rec, {MORE}
  %more = icmp ne i32 %more.bit, 0
  br i1 %more, label %record, label %store.end
store.end:
  br label %store
clean:
  ret i32 {CLEAN}
conflict:
  ret i32 {CONFLICT}
}}
"""

# Yields CONFLICT also for records that are not those of the program's accesses: then nothing is known.
_TRACE = f"""
define i32 @races(ptr %job) #0 {{
entry:
{_load(JOB)}  %id32 = trunc i64 %id to i32
  %base32 = trunc i64 %base to i32
  %learning = icmp ne i64 %learn, 0
  %several = add i32 %base32, 1
{_splat("ids", "%id32")}{_splat("bases", "%base32")}{_splat("many", "%several")}  br label %warp
warp:
  %w = phi i64 [ 0, %entry ], [ %w1, %warp.end ]
  %w1 = add i64 %w, 1
  %left = icmp ult i64 %w, %warps
  br i1 %left, label %warp.begin, label %clean
warp.begin:
{_element("e0", "block_offsets", "%w")}{_element("e1", "block_offsets", "%w1")}{_element("r0", "record_offsets", "%w")}{
    _element("r1", "record_offsets", "%w1")
}  br label %event
event:
  %e = phi i64 [ %e0, %warp.begin ], [ %e.next, %event.end ]
  %r = phi i64 [ %r0, %warp.begin ], [ %ra, %event.end ]
  %e.more = icmp ult i64 %e, %e1
  br i1 %e.more, label %event.begin, label %warp.end
event.begin:
{_element("b16", "blocks", "%e", "i16", 2)}  %b = zext i16 %b16 to i64
  %b1 = add i64 %b, 1
{_element("k0", "first", "%b")}{_element("k1", "first", "%b1")}  br label %access
access:
  %k = phi i64 [ %k0, %event.begin ], [ %k.next, %access.end ]
  %ra = phi i64 [ %r, %event.begin ], [ %r.next, %access.end ]
  %k.more = icmp ult i64 %k, %k1
  br i1 %k.more, label %access.begin, label %event.end
access.begin:
{_element("write8", "writes", "%k", "i8", 1)}  %write = icmp ne i8 %write8, 0
  br label %record
record:
  %rr = phi i64 [ %ra, %access.begin ], [ %r.next, %record.end ]
  %inside = icmp ult i64 %rr, %r1
  br i1 %inside, label %look, label %conflict
look:
{_element("rec", "records", "%rr", "i32", 4)}  %r.next = add i64 %rr, 1
{_LINE}  br i1 %global, label %touch, label %record.end
touch:
  %page = udiv i64 %relative, {PAGE_LINES}
{_element("page.written", "written", "%page", "i8", 1)}  %tracked = icmp ne i8 %page.written, 0
  br i1 %tracked, label %track, label %untracked
untracked:
  br i1 %write, label %unexpected, label %record.end
unexpected:
  br i1 %learning, label %note, label %conflict
note:
  store i8 1, ptr %page.written.p, align 1
  br label %record.end
track:
  br i1 %learning, label %record.end, label %track.sectors
track.sectors:
{_CELLS}{_others("wrote", "%writers")}{_others("read", "%readers")}  br i1 %write, label %writing, label %reading
reading:
  %seen = select <4 x i1> %read, <4 x i32> %many, <4 x i32> %ids
  %readers.new = select <4 x i1> %sectors, <4 x i32> %seen, <4 x i32> %readers
  store <4 x i32> %readers.new, ptr %cell.read, align 4
  br label %judge
writing:
{_WRITE}  br label %judge
judge:
  %others = phi <4 x i1> [ %wrote, %reading ], [ %touched, %writing ]
  %both = and <4 x i1> %others, %sectors
  %both.bits = bitcast <4 x i1> %both to i4
  %races = icmp ne i4 %both.bits, 0
  br i1 %races, label %conflict, label %record.end
record.end:
  %more.bit = and i32 %rec, {MORE}
  %more = icmp ne i32 %more.bit, 0
  br i1 %more, label %record, label %access.end
access.end:
  %k.next = add i64 %k, 1
  br label %access
event.end:
  %e.next = add i64 %e, 1
  br label %event
warp.end:
  %all = icmp eq i64 %r, %r1
  br i1 %all, label %warp, label %conflict
clean:
  ret i32 {CLEAN}
conflict:
  ret i32 {CONFLICT}
}}
"""

RACES = _STORES + _TRACE
