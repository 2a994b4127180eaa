// The driver API's memory: what the runtime does, by the driver's names and structures.
#include "public_calls.h"

typedef uint64_t Address;  // of the device

PUBLIC Error cuMemAlloc_v2(void **pointer, size_t bytes) {
    return bytes ? DRIVER(cudaMalloc(pointer, bytes)) : INVALID_VALUE;
}
PUBLIC Error cuMemFree_v2(void *pointer) { return DRIVER(cudaFree(pointer)); }
PUBLIC Error cuMemAllocManaged(void **pointer, size_t bytes, unsigned flags) {
    return DRIVER(cudaMallocManaged(pointer, bytes, flags));
}
PUBLIC Error cuMemAllocHost_v2(void **pointer, size_t bytes) { return DRIVER(cudaMallocHost(pointer, bytes)); }
PUBLIC Error cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return DRIVER(cudaHostAlloc(pointer, bytes, flags));
}
PUBLIC Error cuMemFreeHost(void *pointer) { return DRIVER(cudaFreeHost(pointer)); }
PUBLIC Error cuMemAllocPitch_v2(void **pointer, size_t *pitch, size_t width, size_t height, unsigned element_bytes) {
    (void)element_bytes;
    return DRIVER(cudaMallocPitch(pointer, pitch, width, height));
}
PUBLIC Error cuMemAllocAsync(void **pointer, size_t bytes, Stream *stream) {
    return DRIVER(cudaMallocAsync(pointer, bytes, stream));
}
PUBLIC Error cuMemAllocFromPoolAsync(void **pointer, size_t bytes, Pool *pool, Stream *stream) {
    return DRIVER(cudaMallocFromPoolAsync(pointer, bytes, pool, stream));
}
PUBLIC Error cuMemFreeAsync(void *pointer, Stream *stream) { return DRIVER(cudaFreeAsync(pointer, stream)); }
PUBLIC Error cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { return DRIVER(cudaMemGetInfo(free_bytes, total)); }
PUBLIC Error cuDeviceGetDefaultMemPool(Pool **pool, int device) {
    return DRIVER(cudaDeviceGetDefaultMemPool(pool, device));
}
PUBLIC Error cuDeviceGetMemPool(Pool **pool, int device) { return DRIVER(cudaDeviceGetMemPool(pool, device)); }
PUBLIC Error cuDeviceSetMemPool(int device, Pool *pool) { return DRIVER(cudaDeviceSetMemPool(device, pool)); }
PUBLIC Error cuMemPoolCreate(Pool **pool, const void *properties) { return DRIVER(cudaMemPoolCreate(pool, properties)); }
PUBLIC Error cuMemPoolDestroy(Pool *pool) { return DRIVER(cudaMemPoolDestroy(pool)); }
PUBLIC Error cuMemPoolSetAccess(Pool *pool, const void *access, size_t count) {
    return DRIVER(cudaMemPoolSetAccess(pool, access, count));
}
PUBLIC Error cuMemPoolGetAccess(int *flags, Pool *pool, const void *place) {
    return DRIVER(cudaMemPoolGetAccess(flags, pool, place));
}
PUBLIC Error cuMemPoolSetAttribute(Pool *pool, int attribute, void *value) {
    return DRIVER(cudaMemPoolSetAttribute(pool, attribute, value));
}
PUBLIC Error cuMemPoolGetAttribute(Pool *pool, int attribute, void *value) {
    return DRIVER(cudaMemPoolGetAttribute(pool, attribute, value));
}
PUBLIC Error cuMemPoolTrimTo(Pool *pool, size_t bytes) { return DRIVER(cudaMemPoolTrimTo(pool, bytes)); }

PUBLIC Error cuMemHostGetDevicePointer_v2(void **device, void *host, unsigned flags) {
    return DRIVER(cudaHostGetDevicePointer(device, host, flags));
}
PUBLIC Error cuMemHostGetFlags(unsigned *flags, void *host) { return DRIVER(cudaHostGetFlags(flags, host)); }
PUBLIC Error cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
    return DRIVER(cudaHostRegister(host, bytes, flags));
}
PUBLIC Error cuMemHostUnregister(void *host) { return DRIVER(cudaHostUnregister(host)); }
PUBLIC Error cuMemAdvise(Address pointer, size_t bytes, int advice, int device) {
    return DRIVER(cudaMemAdvise((void *)pointer, bytes, advice, device));
}
PUBLIC Error cuMemAdvise_v2(Address pointer, size_t bytes, int advice, uint64_t place) {
    return cuMemAdvise(pointer, bytes, advice, (int)place);
}
PUBLIC Error cuMemPrefetchAsync(Address pointer, size_t bytes, int device, Stream *stream) {
    return DRIVER(cudaMemPrefetchAsync((void *)pointer, bytes, device, stream));
}
PUBLIC Error cuMemPrefetchAsync_v2(Address pointer, size_t bytes, uint64_t place, unsigned flags, Stream *stream) {
    (void)flags;
    return cuMemPrefetchAsync(pointer, bytes, (int)place, stream);
}

PUBLIC Error cuMemGetAddressRange_v2(Address *start, size_t *bytes, Address pointer) {
    uint8_t *first;
    size_t found;
    if (!kind_of((void *)pointer, &first, &found)) return NOT_FOUND;
    if (start) *start = (Address)first;
    if (bytes) *bytes = found;
    return SUCCESS;
}

// CUpointer_attribute
enum {
    POINTER_CONTEXT = 1, POINTER_KIND, POINTER_DEVICE, POINTER_HOST, POINTER_SYNC = 6, POINTER_BUFFER, POINTER_MANAGED,
    POINTER_ORDINAL, POINTER_START = 11, POINTER_BYTES, POINTER_MAPPED,
};
PUBLIC Error cuPointerGetAttribute(void *value, int attribute, Address pointer) {
    uint8_t *start = NULL;
    size_t bytes = 0;
    int kind = kind_of((void *)pointer, &start, &bytes);
    if (!kind) return INVALID_VALUE;
    switch (attribute) {
        case POINTER_CONTEXT: return cuCtxGetCurrent(value);
        case POINTER_KIND: *(unsigned *)value = kind == HOST_MEMORY ? 1 : 2; break;
        case POINTER_DEVICE: *(Address *)value = pointer; break;
        case POINTER_HOST: *(Address *)value = kind == DEVICE_MEMORY ? 0 : pointer; break;
        case POINTER_BUFFER: *(Address *)value = (Address)start; break;
        case POINTER_MANAGED: case POINTER_SYNC: *(uint8_t *)value = attribute != POINTER_SYNC && kind == MANAGED_MEMORY; break;
        case POINTER_ORDINAL: *(int *)value = 0; break;
        case POINTER_START: *(Address *)value = (Address)start; break;
        case POINTER_BYTES: *(size_t *)value = bytes; break;
        case POINTER_MAPPED: *(uint8_t *)value = 1; break;
        default: return missing("cuPointerGetAttribute of this attribute");
    }
    return attribute == POINTER_HOST && kind == DEVICE_MEMORY ? INVALID_VALUE : SUCCESS;
}
// Of a pointer that is none of CUDA's, everything is 0
PUBLIC Error cuPointerGetAttributes(unsigned count, const int *attributes, void **values, Address pointer) {
    static const size_t sizes[POINTER_MAPPED + 1] = {0, 8, 4, 8, 8, 0, 1, 8, 1, 4, 0, 8, 8, 1};
    for (unsigned k = 0; k < count; k++) {
        size_t bytes = attributes[k] > 0 && attributes[k] <= POINTER_MAPPED ? sizes[attributes[k]] : 0;
        if (!bytes) return missing("cuPointerGetAttributes of this attribute");
        if (cuPointerGetAttribute(values[k], attributes[k], pointer)) memset(values[k], 0, bytes);
    }
    return SUCCESS;
}
PUBLIC Error cuPointerSetAttribute(const void *value, int attribute, Address pointer) {
    (void)value, (void)attribute, (void)pointer;
    return SUCCESS;
}

enum { ANY = 4 };  // cudaMemcpyDefault: the addresses tell the direction
#define COPY_CALL(name, to_type, from_type) \
    PUBLIC Error name(to_type to, from_type from, size_t bytes) { \
        return DRIVER(cudaMemcpy((void *)to, (const void *)from, bytes, ANY)); \
    }
#define COPY_CALL_ASYNC(name, to_type, from_type) \
    PUBLIC Error name(to_type to, from_type from, size_t bytes, Stream *stream) { \
        return DRIVER(cudaMemcpyAsync((void *)to, (const void *)from, bytes, ANY, stream)); \
    }
COPY_CALL(cuMemcpyHtoD_v2, Address, const void *)
COPY_CALL(cuMemcpyDtoH_v2, void *, Address)
COPY_CALL(cuMemcpyDtoD_v2, Address, Address)
COPY_CALL(cuMemcpy, Address, Address)
COPY_CALL_ASYNC(cuMemcpyHtoDAsync_v2, Address, const void *)
COPY_CALL_ASYNC(cuMemcpyDtoHAsync_v2, void *, Address)
COPY_CALL_ASYNC(cuMemcpyDtoDAsync_v2, Address, Address)
COPY_CALL_ASYNC(cuMemcpyAsync, Address, Address)

static Error fill(Address to, size_t pitch, uint32_t value, unsigned element_bytes, size_t width, size_t height,
                  Stream *stream) {
    if (!width || !height) return SUCCESS;
    if (!on_device((void *)to)) return INVALID_VALUE;
    Operation operation = {.what = FILL};
    operation.fill.to = (uint8_t *)to, operation.fill.pitch = pitch, operation.fill.slice = pitch * height;
    operation.fill.width = width * element_bytes, operation.fill.height = height, operation.fill.depth = 1;
    operation.fill.value = value, operation.fill.element_bytes = element_bytes;
    return DRIVER(submit(&operation, stream));
}
#define FILL_CALL(name, type) \
    PUBLIC Error name(Address to, type value, size_t count) { \
        return fill(to, count * sizeof value, value, sizeof value, count, 1, NULL); \
    }
#define FILL_CALL_ASYNC(name, type) \
    PUBLIC Error name(Address to, type value, size_t count, Stream *stream) { \
        return fill(to, count * sizeof value, value, sizeof value, count, 1, stream); \
    }
#define FILL_2D_CALL(name, type) \
    PUBLIC Error name(Address to, size_t pitch, type value, size_t width, size_t height) { \
        return fill(to, pitch, value, sizeof value, width, height, NULL); \
    }
#define FILL_2D_CALL_ASYNC(name, type) \
    PUBLIC Error name(Address to, size_t pitch, type value, size_t width, size_t height, Stream *stream) { \
        return fill(to, pitch, value, sizeof value, width, height, stream); \
    }
FILL_CALL(cuMemsetD8_v2, uint8_t)
FILL_CALL(cuMemsetD16_v2, uint16_t)
FILL_CALL(cuMemsetD32_v2, uint32_t)
FILL_CALL_ASYNC(cuMemsetD8Async, uint8_t)
FILL_CALL_ASYNC(cuMemsetD16Async, uint16_t)
FILL_CALL_ASYNC(cuMemsetD32Async, uint32_t)
FILL_2D_CALL(cuMemsetD2D8_v2, uint8_t)
FILL_2D_CALL(cuMemsetD2D16_v2, uint16_t)
FILL_2D_CALL(cuMemsetD2D32_v2, uint32_t)
FILL_2D_CALL_ASYNC(cuMemsetD2D8Async, uint8_t)
FILL_2D_CALL_ASYNC(cuMemsetD2D16Async, uint16_t)
FILL_2D_CALL_ASYNC(cuMemsetD2D32Async, uint32_t)
