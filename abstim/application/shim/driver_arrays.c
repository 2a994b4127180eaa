// The driver API's arrays, its copies of two and three dimensions, its texture and surface objects.
#include "public_calls.h"

typedef struct { size_t width, height; unsigned format, channels; } Array2D;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } Array3D;

// CUarray_format, as bits and cudaChannelFormatKind
static const struct { unsigned format; int bits, kind; } formats[] = {
    {0x01, 8, 1}, {0x02, 16, 1}, {0x03, 32, 1}, {0x08, 8, 0}, {0x09, 16, 0}, {0x0A, 32, 0}, {0x10, 16, 2}, {0x20, 32, 2},
};

static int channels_of(unsigned format, unsigned channels, ChannelFormat *out) {
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++)
        if (formats[k].format == format && channels && channels <= 4 && channels != 3) {
            int bits = formats[k].bits;
            *out = (ChannelFormat){bits, channels > 1 ? bits : 0, channels > 2 ? bits : 0, channels > 3 ? bits : 0,
                                   formats[k].kind};
            return 1;
        }
    return 0;
}

PUBLIC Error cuArray3DCreate_v2(Array **array, const Array3D *d) {
    ChannelFormat format;
    if (!channels_of(d->format, d->channels, &format)) return missing("cuArray3DCreate of this format");
    return DRIVER(cudaMalloc3DArray(array, &format, (Extent){d->width, d->height, d->depth}, d->flags));
}
PUBLIC Error cuArrayCreate_v2(Array **array, const Array2D *d) {
    Array3D whole = {d->width, d->height, 0, d->format, d->channels, 0};
    return cuArray3DCreate_v2(array, &whole);
}
PUBLIC Error cuArrayDestroy(Array *array) { return DRIVER(cudaFreeArray(array)); }

static unsigned format_number(const ChannelFormat *format) {
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++)
        if (formats[k].bits == format->x && formats[k].kind == format->kind) return formats[k].format;
    return 0;
}
PUBLIC Error cuArray3DGetDescriptor_v2(Array3D *d, Array *array) {
    ChannelFormat format;
    Extent extent;
    unsigned flags;
    cudaArrayGetInfo(&format, &extent, &flags, array);
    unsigned channels = (unsigned)(!!format.x + !!format.y + !!format.z + !!format.w);
    *d = (Array3D){extent.width, extent.height, extent.depth, format_number(&format), channels, flags};
    return SUCCESS;
}
PUBLIC Error cuArrayGetDescriptor_v2(Array2D *d, Array *array) {
    Array3D whole;
    cuArray3DGetDescriptor_v2(&whole, array);
    *d = (Array2D){whole.width, whole.height, whole.format, whole.channels};
    return SUCCESS;
}

enum { PLACE_HOST = 1, PLACE_ARRAY = 3 };
typedef struct { size_t x, y; unsigned place; void *host; uint64_t device; Array *array; size_t pitch; } Place2D;
typedef struct { Place2D from, to; size_t width, height; } Copy2D;
typedef struct {
    size_t x, y, z, level; unsigned place; void *host; uint64_t device; Array *array; void *reserved; size_t pitch, height;
} Place3D;
typedef struct { Place3D from, to; size_t width, height, depth; } Copy3D;

static Side side(const Place3D *p) {
    if (p->place == PLACE_ARRAY) return side_of_array(p->array, p->x, p->y, p->z);
    uint8_t *start = p->place == PLACE_HOST ? p->host : (uint8_t *)p->device;
    size_t slice = p->pitch * p->height;
    return (Side){start + p->x + p->y * p->pitch + p->z * slice, p->pitch, slice, 0};
}

PUBLIC Error cuMemcpy3DAsync_v2(const Copy3D *c, Stream *stream) {
    if (!c->width || !c->height || !c->depth) return SUCCESS;
    Operation operation = between(side(&c->to), side(&c->from), (Extent){c->width, c->height, c->depth});
    return DRIVER(submit(&operation, stream));
}
PUBLIC Error cuMemcpy3D_v2(const Copy3D *c) { return cuMemcpy3DAsync_v2(c, NULL); }

static Place3D as_3d(const Place2D *p) {
    return (Place3D){.x = p->x, .y = p->y, .place = p->place, .host = p->host, .device = p->device, .array = p->array,
                     .pitch = p->pitch};
}
PUBLIC Error cuMemcpy2DAsync_v2(const Copy2D *c, Stream *stream) {
    Copy3D whole = {as_3d(&c->from), as_3d(&c->to), c->width, c->height, 1};
    return cuMemcpy3DAsync_v2(&whole, stream);
}
PUBLIC Error cuMemcpy2D_v2(const Copy2D *c) { return cuMemcpy2DAsync_v2(c, NULL); }
PUBLIC Error cuMemcpy2DUnaligned_v2(const Copy2D *c) { return cuMemcpy2DAsync_v2(c, NULL); }

static Error to_array(Array *array, size_t offset, const void *from, size_t bytes, Stream *stream) {
    Operation operation = between(side_of_array(array, offset, 0, 0), (Side){(uint8_t *)from, bytes, 0, 0},
                                  (Extent){bytes, 1, 1});
    return DRIVER(submit(&operation, stream));
}
static Error from_array(void *to, Array *array, size_t offset, size_t bytes, Stream *stream) {
    Operation operation = between((Side){to, bytes, 0, 0}, side_of_array(array, offset, 0, 0), (Extent){bytes, 1, 1});
    return DRIVER(submit(&operation, stream));
}
PUBLIC Error cuMemcpyHtoA_v2(Array *to, size_t offset, const void *from, size_t bytes) {
    return to_array(to, offset, from, bytes, NULL);
}
PUBLIC Error cuMemcpyDtoA_v2(Array *to, size_t offset, uint64_t from, size_t bytes) {
    return to_array(to, offset, (void *)from, bytes, NULL);
}
PUBLIC Error cuMemcpyAtoH_v2(void *to, Array *from, size_t offset, size_t bytes) {
    return from_array(to, from, offset, bytes, NULL);
}
PUBLIC Error cuMemcpyAtoD_v2(uint64_t to, Array *from, size_t offset, size_t bytes) {
    return from_array((void *)to, from, offset, bytes, NULL);
}

typedef struct {
    int type;
    union {
        struct { Array *array; } array;
        struct { uint64_t pointer; unsigned format, channels; size_t bytes; } linear;
        struct { uint64_t pointer; unsigned format, channels; size_t width, height, pitch; } pitched;
        int reserved[32];
    };
    unsigned flags;
} Resource;
typedef struct { int address[3], filter; unsigned flags, anisotropy; int mip[3]; float level[2], border[4]; } Sampling;
enum { ARRAY = 0, LINEAR = 2, PITCHED = 3, AS_INTEGER = 1, NORMALIZED = 2, SRGB = 16 };

// As the runtime describes it; 0 for a format that is not there
static int runtime_resource(const Resource *r, RuntimeResource *out) {
    *out = (RuntimeResource){.type = r->type};
    if (r->type == ARRAY) out->array.array = r->array.array;
    if (r->type != LINEAR && r->type != PITCHED) return r->type == ARRAY;
    out->linear.pointer = (void *)r->linear.pointer;
    if (r->type == LINEAR) out->linear.bytes = r->linear.bytes;
    else
        out->pitched.width = r->pitched.width, out->pitched.height = r->pitched.height,
        out->pitched.pitch = r->pitched.pitch;
    return channels_of(r->linear.format, r->linear.channels, &out->linear.format);
}

PUBLIC Error cuTexObjectCreate(uint64_t *handle, const Resource *r, const Sampling *s, const void *view) {
    RuntimeResource resource;
    ChannelFormat format;
    if (!runtime_resource(r, &resource)) return missing("cuTexObjectCreate of this resource");
    if (r->type == ARRAY) cudaGetChannelDesc(&format, r->array.array);
    else format = resource.linear.format;
    int promoted = format.kind != 2 && format.x < 32 && !(s->flags & AS_INTEGER);
    RuntimeSampling sampling = {.filter = s->filter, .as_float = promoted, .srgb = !!(s->flags & SRGB),
                                .normalized = !!(s->flags & NORMALIZED)};
    memcpy(sampling.address, s->address, sizeof s->address);
    memcpy(sampling.border, s->border, sizeof s->border);
    return DRIVER(cudaCreateTextureObject(handle, &resource, &sampling, view));
}
PUBLIC Error cuTexObjectDestroy(uint64_t handle) { (void)handle; return SUCCESS; }
PUBLIC Error cuSurfObjectCreate(uint64_t *handle, const Resource *r) {
    RuntimeResource resource;
    if (!runtime_resource(r, &resource)) return missing("cuSurfObjectCreate of this resource");
    return DRIVER(cudaCreateSurfaceObject(handle, &resource));
}
PUBLIC Error cuSurfObjectDestroy(uint64_t handle) { (void)handle; return SUCCESS; }
