// Arrays, three-dimensional copies, texture and surface objects. An array lies in device memory row after row.
#include "shim.h"

enum { LAYERED = 1, CUBE = 4 };

static size_t texel_bytes(const ChannelFormat *f) { return (size_t)(f->x + f->y + f->z + f->w) / 8; }
static size_t most(size_t a, size_t b) { return a > b ? a : b; }

PUBLIC ChannelFormat cudaCreateChannelDesc(int x, int y, int z, int w, int kind) {
    return (ChannelFormat){x, y, z, w, kind};
}

PUBLIC Error cudaMalloc3DArray(Array **array, const ChannelFormat *format, Extent extent, unsigned flags) {
    int faces = flags & LAYERED ? extent.depth % 6 == 0 : extent.depth == 6;
    if (flags & CUBE && (extent.width != extent.height || !extent.depth || !faces)) return failed(INVALID_VALUE);
    Array *made = calloc(1, sizeof *made);
    *made = (Array){NULL, *format, extent, texel_bytes(format), flags};
    size_t texels = extent.width * most(extent.height, 1) * most(extent.depth, 1);
    Error error = allocate((void **)&made->data, texels * made->texel_bytes, DEVICE_MEMORY);
    *array = made;
    return error;
}
PUBLIC Error cudaMallocArray(Array **array, const ChannelFormat *format, size_t width, size_t height, unsigned flags) {
    return cudaMalloc3DArray(array, format, (Extent){width, height, 0}, flags);
}
PUBLIC Error cudaFreeArray(Array *array) {
    if (!array) return failed(SUCCESS);
    Error error = release(array->data);
    free(array);
    return error;
}
PUBLIC Error cudaArrayGetInfo(ChannelFormat *format, Extent *extent, unsigned *flags, Array *array) {
    if (format) *format = array->format;
    if (extent) *extent = array->extent;
    if (flags) *flags = array->flags;
    return failed(SUCCESS);
}
PUBLIC Error cudaGetChannelDesc(ChannelFormat *format, const Array *array) {
    *format = array->format;
    return failed(SUCCESS);
}

Side side_of_array(const Array *array, size_t byte, size_t y, size_t z) {
    size_t pitch = array->extent.width * array->texel_bytes, slice = pitch * most(array->extent.height, 1);
    return (Side){array->data + byte + y * pitch + z * slice, pitch, slice, array->texel_bytes};
}

Operation between(Side to, Side from, Extent bytes) {
    return (Operation){.what = COPY, .copy = {to.at, from.at, to.pitch, to.slice, from.pitch, from.slice, bytes.width,
                                              most(bytes.height, 1), most(bytes.depth, 1)}};
}

typedef struct {
    Array *from_array; Position from_position; PitchedPointer from;
    Array *to_array; Position to_position; PitchedPointer to;
    Extent extent; int kind;
} Copy3D;

static Side side(Array *array, Position at, PitchedPointer pointer) {
    if (array) return side_of_array(array, at.x * array->texel_bytes, at.y, at.z);
    size_t slice = pointer.pitch * pointer.ysize;
    return (Side){(uint8_t *)pointer.ptr + at.x + at.y * pointer.pitch + at.z * slice, pointer.pitch, slice, 0};
}

Error copy_3d(const void *parameters, Operation *operation) {
    const Copy3D *p = parameters;
    Side to = side(p->to_array, p->to_position, p->to), from = side(p->from_array, p->from_position, p->from);
    Extent bytes = p->extent;  // in texels where an array takes part
    size_t unit = most(to.unit, from.unit);
    if (unit) bytes.width *= unit;
    *operation = between(to, from, bytes);
    return to.at && from.at ? SUCCESS : INVALID_VALUE;
}

PUBLIC Error cudaMemcpy3DAsync(const Copy3D *p, Stream *stream) {
    Operation operation;
    Error error = copy_3d(p, &operation);
    return error ? failed(error) : submit(&operation, stream);
}
PUBLIC Error cudaMemcpy3D(const Copy3D *p) { return cudaMemcpy3DAsync(p, NULL); }

static Error flat(Side to, Side from, size_t width, size_t height, Stream *stream) {
    Operation operation = between(to, from, (Extent){width, height, 1});
    return submit(&operation, stream);
}

PUBLIC Error cudaMemcpy2DToArrayAsync(Array *to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                      size_t height, int kind, Stream *stream) {
    (void)kind;
    return flat(side_of_array(to, x, y, 0), (Side){(uint8_t *)from, pitch, 0, 0}, width, height, stream);
}
PUBLIC Error cudaMemcpy2DToArray(Array *to, size_t x, size_t y, const void *from, size_t pitch, size_t width,
                                 size_t height, int kind) {
    return cudaMemcpy2DToArrayAsync(to, x, y, from, pitch, width, height, kind, NULL);
}
PUBLIC Error cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, const Array *from, size_t x, size_t y, size_t width,
                                        size_t height, int kind, Stream *stream) {
    (void)kind;
    return flat((Side){to, pitch, 0, 0}, side_of_array(from, x, y, 0), width, height, stream);
}
PUBLIC Error cudaMemcpy2DFromArray(void *to, size_t pitch, const Array *from, size_t x, size_t y, size_t width,
                                   size_t height, int kind) {
    return cudaMemcpy2DFromArrayAsync(to, pitch, from, x, y, width, height, kind, NULL);
}
PUBLIC Error cudaMemcpy2DArrayToArray(Array *to, size_t tx, size_t ty, const Array *from, size_t fx, size_t fy,
                                      size_t width, size_t height, int kind) {
    (void)kind;
    return flat(side_of_array(to, tx, ty, 0), side_of_array(from, fx, fy, 0), width, height, NULL);
}
PUBLIC Error cudaMemcpyToArray(Array *to, size_t x, size_t y, const void *from, size_t bytes, int kind) {
    (void)kind;
    return flat(side_of_array(to, x, y, 0), (Side){(uint8_t *)from, bytes, 0, 0}, bytes, 1, NULL);
}
PUBLIC Error cudaMemcpyFromArray(void *to, const Array *from, size_t x, size_t y, size_t bytes, int kind) {
    (void)kind;
    return flat((Side){to, bytes, 0, 0}, side_of_array(from, x, y, 0), bytes, 1, NULL);
}

enum { ARRAY = 0, MIPMAP = 1, LINEAR = 2, PITCHED = 3 };

static struct texture_request describe(const RuntimeResource *r, const RuntimeSampling *s) {
    ChannelFormat f = r->type == ARRAY ? r->array.array->format : r->linear.format;
    struct texture_request t = {
        .bits = (uint64_t)f.x, .kind = (uint64_t)f.kind, .channels = (uint64_t)(!!f.x + !!f.y + !!f.z + !!f.w)};
    if (r->type == ARRAY) {
        Array *a = r->array.array;
        t.address = (uint64_t)a->data, t.width = a->extent.width, t.height = a->extent.height;
        t.depth = a->extent.depth, t.pitch = a->extent.width * a->texel_bytes;
    } else if (r->type == LINEAR) {
        t.address = (uint64_t)r->linear.pointer, t.width = r->linear.bytes / texel_bytes(&f);
        t.pitch = r->linear.bytes;
    } else {
        t.address = (uint64_t)r->pitched.pointer, t.width = r->pitched.width, t.height = r->pitched.height;
        t.pitch = r->pitched.pitch;
    }
    if (s) {
        t.linear = (uint64_t)s->filter, t.normalized = (uint64_t)s->normalized, t.as_float = (uint64_t)s->as_float;
        for (int k = 0; k < 3; k++) t.modes |= (uint64_t)s->address[k] << 8 * k;
        for (int k = 0; k < 4; k++) t.border |= (uint64_t)(s->border[k] != 0);
    }
    return t;
}

static Error object(uint64_t *handle, const RuntimeResource *r, const RuntimeSampling *s) {
    if (r->type == MIPMAP) return missing("cudaCreateTextureObject of a mipmapped array");
    if (s && s->srgb && s->as_float) return missing("cudaCreateTextureObject of a texture in sRGB");
    struct texture_request request = describe(r, s);
    struct texture_reply reply = {0};
    Error error = ASK(TEXTURE, request, reply);
    *handle = reply.handle;
    return failed(error);
}

PUBLIC Error cudaCreateTextureObject(uint64_t *handle, const RuntimeResource *r, const RuntimeSampling *s, const void *view) {
    if (view) return missing("cudaCreateTextureObject with a resource view");
    return object(handle, r, s);
}
PUBLIC Error cudaCreateSurfaceObject(uint64_t *handle, const RuntimeResource *r) { return object(handle, r, NULL); }
PUBLIC Error cudaDestroyTextureObject(uint64_t handle) { (void)handle; return failed(SUCCESS); }
PUBLIC Error cudaDestroySurfaceObject(uint64_t handle) { (void)handle; return failed(SUCCESS); }
