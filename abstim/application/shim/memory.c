// Allocations, copies and fills. Device memory is mapped here: a copy is a copy of bytes, abstim is told for the clock.
#include "shim.h"

#include <errno.h>
#include <malloc.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct { uint8_t *start; size_t bytes; int kind, of_graph; unsigned flags; Pool *pool; } Allocation;
static Allocation *allocations;
static unsigned allocation_count, allocation_room;

Error allocate(void **pointer, size_t bytes, int kind) {
    struct allocate_request request = {bytes, (uint64_t)kind};
    struct allocate_reply reply = {0};
    if (!pointer) return failed(INVALID_VALUE);
    lock();
    Error error = bytes ? ASK(ALLOCATE, request, reply) : SUCCESS;
    *pointer = error ? NULL : (void *)reply.address;
    if (!error && bytes) {
        if (allocation_count == allocation_room) {
            allocation_room = allocation_room ? 2 * allocation_room : 64;
            allocations = realloc(allocations, allocation_room * sizeof *allocations);
        }
        allocations[allocation_count++] = (Allocation){*pointer, bytes, kind, 0, 0, NULL};
    }
    unlock();
    return failed(error);
}

static Allocation *holding(const void *address) {
    for (unsigned k = allocation_count; k-- > 0;)
        if ((const uint8_t *)address >= allocations[k].start
            && (const uint8_t *)address < allocations[k].start + allocations[k].bytes)
            return &allocations[k];
    return NULL;
}

int kind_of(const void *address, uint8_t **start, size_t *bytes) {
    lock();
    Allocation *found = holding(address);
    int kind = found ? found->kind : on_device(address) ? DEVICE_MEMORY : 0;
    if (found) *start = found->start, *bytes = found->bytes;
    unlock();
    return kind;
}

// Is a box of bytes wholly in one allocation or variable, or in memory of the host that is there?
int reachable(const void *at, size_t pitch, size_t slice, size_t width, size_t height, size_t depth) {
    size_t bytes;
    if (!width || !height || !depth) return 1;
    if (__builtin_mul_overflow(depth - 1, slice, &slice) || __builtin_mul_overflow(height - 1, pitch, &pitch)
        || __builtin_add_overflow(slice, pitch, &bytes) || __builtin_add_overflow(bytes, width, &bytes)) return 0;
    const uint8_t *last = (const uint8_t *)at + bytes - 1;
    if (last < (const uint8_t *)at) return 0;
    if (on_device(at) || on_device(last)) {
        lock();
        const Allocation *found = holding(at);
        int inside = found && last < found->start + found->bytes;
        struct inside_request request = {(uint64_t)at, bytes};
        struct inside_reply reply = {0};
        if (!inside) inside = !ASK(INSIDE, request, reply);
        unlock();
        return inside;
    }
    for (int k = 0; k < 2; k++) {
        uint8_t byte;
        struct iovec to = {&byte, 1}, from = {(void *)(k ? last : at), 1};
        if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) < 0 && errno == EFAULT) return 0;
    }
    return 1;
}

Error release(void *pointer) {
    struct release_request request = {(uint64_t)pointer};
    struct release_reply reply;
    if (!pointer) return failed(SUCCESS);
    lock();
    Allocation *found = holding(pointer);
    int kept = found && found->of_graph;
    Error error = kept ? SUCCESS : found && found->start == pointer ? ASK(RELEASE, request, reply) : INVALID_VALUE;
    if (!error && !kept && found->pool) count_of_pool(found->pool, -(int64_t)found->bytes);
    if (!error && !kept) *found = allocations[--allocation_count];
    unlock();
    return failed(error);
}

// Memory that a graph allocates is kept: each of its launches has it again, at the same address
void keep_for_graph(const void *pointer) {
    lock();
    Allocation *found = holding(pointer);
    if (found) found->of_graph = 1;
    unlock();
}

void belongs_to(const void *pointer, Pool *pool) {
    lock();
    Allocation *found = holding(pointer);
    if (found) found->pool = pool, count_of_pool(pool, (int64_t)found->bytes);
    unlock();
}

PUBLIC Error cudaMalloc(void **pointer, size_t bytes) {
    use_primary();
    Error broken = breaks_capture(0);
    return broken ? failed(broken) : allocate(pointer, bytes, DEVICE_MEMORY);
}
PUBLIC Error cudaFree(void *pointer) {
    use_primary();
    return release(pointer);
}
PUBLIC Error cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    if ((flags != 1 && flags != 2) || !bytes) return failed(INVALID_VALUE);  // attached to all streams, or to the host
    return allocate(pointer, bytes, MANAGED_MEMORY);
}
enum { MAPPED = 2, HOST_FLAGS = 7 };  // of pinned memory, which is mapped always: portable, mapped, write-combined
PUBLIC Error cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    if (flags & ~HOST_FLAGS) return failed(INVALID_VALUE);
    Error error = allocate(pointer, bytes, HOST_MEMORY);
    lock();
    Allocation *found = error ? NULL : holding(*pointer);
    if (found) found->flags = flags;
    unlock();
    return error;
}
PUBLIC Error cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
PUBLIC Error cudaFreeHost(void *pointer) { return release(pointer); }
PUBLIC Error cudaFreeAsync(void *pointer, Stream *stream) {
    Operation operation = {.what = RELEASE, .memory = {(uint64_t)pointer}};
    return submit(&operation, stream);
}

PUBLIC Error cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch * height, DEVICE_MEMORY);
}

PUBLIC Error cudaMalloc3D(PitchedPointer *pointer, Extent extent) {
    pointer->xsize = extent.width, pointer->ysize = extent.height;
    return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth);
}

// Memory of the host that the program pinned: whole pages, which lie in device memory from then on
typedef struct { uint8_t *host, *device; void *allocation; size_t bytes; } Pinned;
static Pinned pinned[256];
static unsigned pinned_count;
enum { PAGE = 4096, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };

static Pinned *pinned_at(const void *host) {
    for (unsigned k = 0; k < pinned_count; k++)
        if ((const uint8_t *)host >= pinned[k].host && (const uint8_t *)host < pinned[k].host + pinned[k].bytes)
            return &pinned[k];
    return NULL;
}

int of_device(const void *address) {
    lock();
    int found = on_device(address) || pinned_at(address);
    unlock();
    return found;
}

static Error pin(void *host, size_t bytes) {
    uint64_t first = (uint64_t)host / PAGE * PAGE, after = ((uint64_t)host + bytes + PAGE - 1) / PAGE * PAGE;
    Pinned made = {.host = (uint8_t *)first, .bytes = after - first};
    if (pinned_count == sizeof pinned / sizeof *pinned) return missing("cudaHostRegister of more than 256 areas");
    Error error = allocate(&made.allocation, made.bytes + PAGE, HOST_MEMORY);
    if (error) return error;
    made.device = (uint8_t *)(((uint64_t)made.allocation + PAGE - 1) / PAGE * PAGE);
    if (!share_pages(made.host, made.device, made.bytes)) return release(made.allocation), INVALID_VALUE;
    pinned[pinned_count++] = made;
    return SUCCESS;
}

PUBLIC Error cudaHostRegister(void *host, size_t bytes, unsigned flags) {
    (void)flags;
    if (!host || !bytes) return failed(INVALID_VALUE);
    lock();
    Error error = pinned_at(host) ? ALREADY_REGISTERED : on_device(host) ? SUCCESS : pin(host, bytes);
    unlock();
    return failed(error);
}

PUBLIC Error cudaHostUnregister(void *host) {
    lock();
    Pinned *found = pinned_at(host);
    if (found) {
        unshare_pages(found->host, found->device, found->bytes);
        release(found->allocation);
        *found = pinned[--pinned_count];
    }
    unlock();
    return failed(found || on_device(host) ? SUCCESS : NOT_REGISTERED);
}

PUBLIC Error cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    (void)flags;
    lock();
    const Pinned *found = pinned_at(host);
    *device = found ? found->device + ((uint8_t *)host - found->host) : on_device(host) ? host : NULL;
    unlock();
    return failed(*device ? SUCCESS : INVALID_VALUE);
}

PUBLIC Error cudaHostGetFlags(unsigned *flags, void *host) {
    lock();
    const Allocation *found = holding(host);
    int pinned_here = (found && found->kind == HOST_MEMORY) || pinned_at(host);
    *flags = (found ? found->flags : 0) | MAPPED;
    unlock();
    return failed(pinned_here ? SUCCESS : INVALID_VALUE);
}

PUBLIC Error cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    struct usage_request request;
    struct usage_reply reply;
    Error error = ASK(USAGE, request, reply);
    *free_bytes = reply.free_bytes, *total = reply.total_bytes;
    return failed(error);
}

typedef struct { int type, device; void *device_pointer, *host_pointer; long reserved[8]; } PointerAttributes;
PUBLIC Error cudaPointerGetAttributes(PointerAttributes *attributes, const void *pointer) {
    uint8_t *start;
    size_t bytes;
    int kind = kind_of(pointer, &start, &bytes);
    lock();
    const Pinned *registered = pinned_at(pointer);
    uint8_t *place = registered ? registered->device + ((const uint8_t *)pointer - registered->host) : (uint8_t *)pointer;
    if (registered) kind = HOST_MEMORY;
    unlock();
    attributes->type = kind, attributes->device = kind ? 0 : -2;
    attributes->device_pointer = kind ? place : NULL;
    attributes->host_pointer = kind == DEVICE_MEMORY ? NULL : (void *)pointer;
    return failed(SUCCESS);
}

enum { TO_DEVICE = 1, FROM_DEVICE, WITHIN_DEVICE, ANY };  // cudaMemcpyKind

static Error copy(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                  Stream *stream) {
    if (kind < 0 || kind > 4) return failed(INVALID_DIRECTION);
    if (!width || !height) return failed(SUCCESS);
    if (width > to_pitch || width > from_pitch) return failed(INVALID_PITCH);
    if (!to || !from) return failed(INVALID_VALUE);
    if (((kind & 1) && !of_device(to)) || ((kind & 2) && !of_device(from))) return failed(INVALID_VALUE);
    Operation operation = {.what = COPY, .copy = {to, from, to_pitch, 0, from_pitch, 0, width, height, 1}};
    return submit(&operation, stream);
}

PUBLIC Error cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    return copy(to, bytes, from, bytes, bytes, 1, kind, NULL);
}
PUBLIC Error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream *stream) {
    return copy(to, bytes, from, bytes, bytes, 1, kind, stream);
}
PUBLIC Error cudaMemcpyPeer(void *to, int a, const void *from, int b, size_t bytes) {
    (void)a, (void)b;
    return copy(to, bytes, from, bytes, bytes, 1, 3, NULL);
}
PUBLIC Error cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t bytes, Stream *stream) {
    (void)a, (void)b;
    return copy(to, bytes, from, bytes, bytes, 1, 3, stream);
}
PUBLIC Error cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                          int kind) {
    return copy(to, to_pitch, from, from_pitch, width, height, kind, NULL);
}
PUBLIC Error cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                               size_t height, int kind, Stream *stream) {
    return copy(to, to_pitch, from, from_pitch, width, height, kind, stream);
}

static Error copy_symbol(const void *host, void *other, size_t bytes, size_t offset, int kind, int to_symbol,
                         Stream *stream) {
    uint8_t *address;
    size_t size;
    if (kind != ANY && kind != WITHIN_DEVICE && kind != (to_symbol ? TO_DEVICE : FROM_DEVICE)) return failed(INVALID_DIRECTION);
    Error error = symbol(host, &address, &size);
    if (!error && (offset > size || bytes > size - offset)) error = INVALID_VALUE;
    if (error) return failed(error);
    if (to_symbol) return copy(address + offset, bytes, other, bytes, bytes, 1, ANY, stream);
    return copy(other, bytes, address + offset, bytes, bytes, 1, ANY, stream);
}

PUBLIC Error cudaMemcpyToSymbol(const void *host, const void *from, size_t bytes, size_t offset, int kind) {
    return copy_symbol(host, (void *)from, bytes, offset, kind, 1, NULL);
}
PUBLIC Error cudaMemcpyToSymbolAsync(const void *host, const void *from, size_t bytes, size_t offset, int kind,
                                     Stream *stream) {
    return copy_symbol(host, (void *)from, bytes, offset, kind, 1, stream);
}
PUBLIC Error cudaMemcpyFromSymbol(void *to, const void *host, size_t bytes, size_t offset, int kind) {
    return copy_symbol(host, to, bytes, offset, kind, 0, NULL);
}
PUBLIC Error cudaMemcpyFromSymbolAsync(void *to, const void *host, size_t bytes, size_t offset, int kind,
                                       Stream *stream) {
    return copy_symbol(host, to, bytes, offset, kind, 0, stream);
}

static Error fill(void *to, size_t pitch, size_t slice, int value, Extent extent, Stream *stream) {
    if (!extent.width || !extent.height || !extent.depth) return failed(SUCCESS);
    if (!on_device(to) || (extent.height > 1 && extent.width > pitch)) return failed(INVALID_VALUE);
    Operation operation = {.what = FILL};
    operation.fill.to = to, operation.fill.pitch = pitch, operation.fill.slice = slice;
    operation.fill.width = extent.width, operation.fill.height = extent.height, operation.fill.depth = extent.depth;
    operation.fill.value = (uint32_t)value & 0xFF, operation.fill.element_bytes = 1;
    return submit(&operation, stream);
}

PUBLIC Error cudaMemsetAsync(void *to, int value, size_t bytes, Stream *stream) {
    return fill(to, bytes, bytes, value, (Extent){bytes, 1, 1}, stream);
}
PUBLIC Error cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, NULL); }
PUBLIC Error cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, Stream *stream) {
    return fill(to, pitch, pitch * height, value, (Extent){width, height, 1}, stream);
}
PUBLIC Error cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    return cudaMemset2DAsync(to, pitch, value, width, height, NULL);
}
PUBLIC Error cudaMemset3DAsync(PitchedPointer to, int value, Extent extent, Stream *stream) {
    return fill(to.ptr, to.pitch, to.pitch * to.ysize, value, extent, stream);
}
PUBLIC Error cudaMemset3D(PitchedPointer to, int value, Extent extent) {
    return cudaMemset3DAsync(to, value, extent, NULL);
}

PUBLIC Error cudaMemAdvise(const void *pointer, size_t bytes, int advice, int device) {
    (void)pointer, (void)bytes, (void)advice, (void)device;
    return failed(SUCCESS);
}
PUBLIC Error cudaMemPrefetchAsync(const void *pointer, size_t bytes, int device, Stream *stream) {
    (void)pointer, (void)bytes, (void)device, (void)stream;  // memory is where it is
    return failed(SUCCESS);
}
PUBLIC Error cudaStreamAttachMemAsync(Stream *stream, void *pointer, size_t bytes, unsigned flags) {
    (void)stream, (void)pointer, (void)bytes, (void)flags;
    return failed(SUCCESS);
}
