// Tensor maps: made by abstim, which says what their 128 bytes are (functional/tensor_map.py).
#include "shim.h"

enum { MAP_BYTES = 128, ADDRESS_AT = 16, MOST_AXES = 5 };

PUBLIC Error cuTensorMapEncodeTiled(void *map, int element, unsigned rank, void *address, const uint64_t *size,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                    int swizzle, int l2_promotion, int fill_nan) {
    (void)l2_promotion;  // a hint
    if (!map || rank < 1 || rank > MOST_AXES) return of_driver(INVALID_VALUE);
    struct tensor_map_request request = {(uint64_t)element, (uint64_t)address, (uint64_t)interleave, (uint64_t)swizzle,
                                         (uint64_t)fill_nan};
    uint64_t axes[MOST_AXES][4] = {{0}};
    for (unsigned k = 0; k < rank; k++) {
        axes[k][0] = size[k], axes[k][1] = box[k], axes[k][2] = steps[k];
        if (k) axes[k][3] = strides[k - 1];
    }
    struct tensor_map_reply reply;
    size_t bytes;
    lock();
    Error error =
        ask(MESSAGE_TENSOR_MAP, &request, sizeof request, axes, rank * sizeof axes[0], &reply, sizeof reply);
    const uint8_t *made = reply_payload(&bytes);
    if (!error) memcpy(map, made, MAP_BYTES);
    unlock();
    return of_driver(error);
}

PUBLIC Error cuTensorMapReplaceAddress(void *map, void *address) {
    if (!map) return of_driver(INVALID_VALUE);
    memcpy((uint8_t *)map + ADDRESS_AT, &address, sizeof address);
    return SUCCESS;
}
