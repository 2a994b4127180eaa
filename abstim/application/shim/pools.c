// Pools of memory: what is had of each, and what a program sets of it. None keeps memory that nobody has: what is given
// back to one is the device's.
#include "public_calls.h"

enum { RELEASE_THRESHOLD = 4, RESERVED, RESERVED_MOST, USED, USED_MOST, ATTRIBUTES };  // cudaMemPoolAttr; switches before
struct Pool { uint64_t attributes[ATTRIBUTES]; };
static Pool usual = {{0, 1, 1, 1}}, *chosen = &usual;

void count_of_pool(Pool *pool, int64_t bytes) {
    pool->attributes[RESERVED] = pool->attributes[USED] += (uint64_t)bytes;
    if (pool->attributes[USED] > pool->attributes[USED_MOST]) pool->attributes[USED_MOST] = pool->attributes[USED];
    if (pool->attributes[USED] > pool->attributes[RESERVED_MOST]) pool->attributes[RESERVED_MOST] = pool->attributes[USED];
}

PUBLIC Error cudaMallocFromPoolAsync(void **pointer, size_t bytes, Pool *pool, Stream *stream) {
    CHECK_STREAM(stream);
    Error error = pool ? allocate(pointer, bytes, DEVICE_MEMORY) : failed(INVALID_VALUE);
    if (!error) belongs_to(*pointer, pool);
    if (!error && (uintptr_t)stream > 2 && stream->capture) keep_for_graph(*pointer);
    return error;
}
PUBLIC Error cudaMallocAsync(void **pointer, size_t bytes, Stream *stream) {
    return cudaMallocFromPoolAsync(pointer, bytes, chosen, stream);
}

PUBLIC Error cudaDeviceGetDefaultMemPool(Pool **pool, int device) {
    if (device) return failed(INVALID_DEVICE);
    *pool = &usual;
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceGetMemPool(Pool **pool, int device) {
    if (device) return failed(INVALID_DEVICE);
    *pool = chosen;
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceSetMemPool(int device, Pool *pool) {
    if (device || !pool) return failed(device ? INVALID_DEVICE : INVALID_VALUE);
    chosen = pool;
    return failed(SUCCESS);
}
PUBLIC Error cudaMemPoolCreate(Pool **pool, const void *properties) {
    (void)properties;
    *pool = malloc(sizeof **pool);
    **pool = (Pool){{0, 1, 1, 1}};
    return failed(SUCCESS);
}
// What it gave stays valid, and counts in it, so it stays
PUBLIC Error cudaMemPoolDestroy(Pool *pool) {
    if (!pool || pool == &usual) return failed(INVALID_VALUE);
    if (chosen == pool) chosen = &usual;
    return failed(SUCCESS);
}

PUBLIC Error cudaMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
    if (!pool || attribute < 1 || attribute >= ATTRIBUTES) return failed(INVALID_VALUE);
    uint64_t given = attribute < RELEASE_THRESHOLD ? (uint64_t)*(int *)value : *(uint64_t *)value;
    int most = attribute == RESERVED_MOST || attribute == USED_MOST;
    if (attribute == RESERVED || attribute == USED || (most && given)) return failed(INVALID_VALUE);
    pool->attributes[attribute] = most ? pool->attributes[USED] : given;  // 0: the most from now on
    return failed(SUCCESS);
}
PUBLIC Error cudaMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
    if (!pool || attribute < 1 || attribute >= ATTRIBUTES) return failed(INVALID_VALUE);
    if (attribute < RELEASE_THRESHOLD) *(int *)value = (int)pool->attributes[attribute];
    else *(uint64_t *)value = pool->attributes[attribute];
    return failed(SUCCESS);
}
PUBLIC Error cudaMemPoolTrimTo(Pool *pool, size_t bytes) { (void)bytes; return failed(pool ? SUCCESS : INVALID_VALUE); }
PUBLIC Error cudaMemPoolSetAccess(Pool *pool, const void *access, size_t count) {
    (void)access, (void)count;
    return failed(pool ? SUCCESS : INVALID_VALUE);
}
PUBLIC Error cudaMemPoolGetAccess(int *flags, Pool *pool, const void *place) {
    (void)place;
    *flags = 3;  // the device reads and writes
    return failed(pool ? SUCCESS : INVALID_VALUE);
}
