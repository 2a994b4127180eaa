// Tensor maps: made by abstim, which says what their 128 bytes are (functional/launches/views.py).
#include "shim.h"

enum { MAP_BYTES = 128, ADDRESS_AT = 16, MOST_AXES = 5, LEAST_IM2COL_AXES = 3 };

// Of each axis, the innermost first: elements, those of a box, steps, bytes from one to the next, and of an im2col map
// where its window begins and ends
typedef struct { uint64_t size, box, step, stride; int64_t lower, upper; } Axis;

static Error encode(void *map, struct tensor_map_request *request, const Axis *axes, unsigned rank) {
    struct tensor_map_reply reply;
    size_t bytes;
    lock();
    Error error = ask(MESSAGE_TENSOR_MAP, request, sizeof *request, axes, rank * sizeof *axes, &reply, sizeof reply);
    const uint8_t *made = reply_payload(&bytes);
    if (!error) memcpy(map, made, MAP_BYTES);
    unlock();
    return of_driver(error);
}

PUBLIC Error cuTensorMapEncodeTiled(void *map, int element, unsigned rank, void *address, const uint64_t *size,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                    int swizzle, int l2_promotion, int fill_nan) {
    (void)l2_promotion;  // a hint
    if (!map || rank < 1 || rank > MOST_AXES) return of_driver(INVALID_VALUE);
    struct tensor_map_request request = {(uint64_t)element, (uint64_t)address, (uint64_t)interleave, (uint64_t)swizzle,
                                         (uint64_t)fill_nan, 0};
    Axis axes[MOST_AXES];
    for (unsigned k = 0; k < rank; k++)
        axes[k] = (Axis){size[k], box[k], steps[k], k ? strides[k - 1] : 0, 0, 0};
    return encode(map, &request, axes, rank);
}

PUBLIC Error cuTensorMapEncodeIm2col(void *map, int element, unsigned rank, void *address, const uint64_t *size,
                                     const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                                     unsigned pixels, const uint32_t *steps, int interleave, int swizzle,
                                     int l2_promotion, int fill_nan) {
    (void)l2_promotion;
    if (!map || rank < LEAST_IM2COL_AXES || rank > MOST_AXES || !pixels) return of_driver(INVALID_VALUE);
    struct tensor_map_request request = {(uint64_t)element, (uint64_t)address, (uint64_t)interleave, (uint64_t)swizzle,
                                         (uint64_t)fill_nan, pixels};
    Axis axes[MOST_AXES];
    for (unsigned k = 0; k < rank; k++) {
        int spatial = k > 0 && k < rank - 1;
        axes[k] = (Axis){size[k], k ? 1 : channels, steps[k], k ? strides[k - 1] : 0, spatial ? lower[k - 1] : 0,
                         spatial ? upper[k - 1] : 0};
    }
    return encode(map, &request, axes, rank);
}

PUBLIC Error cuTensorMapReplaceAddress(void *map, void *address) {
    if (!map) return of_driver(INVALID_VALUE);
    memcpy((uint8_t *)map + ADDRESS_AT, &address, sizeof address);
    return SUCCESS;
}
