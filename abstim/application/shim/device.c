// The one device: what it is, and what can be set of it.
#include "shim.h"

typedef struct {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t global_bytes, shared_bytes_per_block;
    int registers_per_block, warp_size;
    size_t max_pitch;
    int max_threads_per_block, max_block[3], max_grid[3];
#if RUNTIME < 13
    int clock_khz;
#endif
    size_t const_bytes;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
#if RUNTIME < 13
    int overlap;
#endif
    int sm_count;
#if RUNTIME < 13
    int timeout;
#endif
    int integrated, maps_host_memory;
#if RUNTIME < 13
    int compute_mode;
#endif
    int texture_1d, texture_1d_mipmap;
#if RUNTIME < 13
    int texture_1d_linear;
#endif
    int texture_2d[2], texture_2d_mipmap[2], texture_2d_linear[3], texture_2d_gather[2], texture_3d[3],
        texture_3d_alternative[3], texture_cube, texture_1d_layered[2], texture_2d_layered[3], texture_cube_layered[2],
        surface_1d, surface_2d[2], surface_3d[3], surface_1d_layered[2], surface_2d_layered[3], surface_cube,
        surface_cube_layered[2];
    size_t surface_alignment;
    int concurrent_kernels, ecc, bus, device, domain, tcc, copy_engines, unified_addressing;
#if RUNTIME < 13
    int memory_clock_khz;
#endif
    int memory_bus_bits, l2_bytes, persisting_l2_bytes, max_threads_per_sm, priorities, global_l1, local_l1;
    size_t shared_bytes_per_sm;
    int registers_per_sm, managed, multi_board, board_group, host_atomics;
#if RUNTIME < 13
    int single_to_double;
#endif
    int pageable, concurrent_managed, preemption, host_pointer, cooperative;
#if RUNTIME < 13
    int cooperative_multi_device;
#endif
    size_t shared_bytes_per_block_opt_in;
    int host_page_tables, direct_managed, max_blocks_per_sm, access_window;
    size_t reserved_shared_bytes;
#if RUNTIME > 11
    int registers_host_memory, sparse_arrays, registers_read_only, timelines, pools, direct[3], handles, deferred, ipc,
        clusters, rest[64];  // what is not set is not had
#endif
} Properties;

typedef struct { int32_t number, value; } Attribute;
static Attribute *attributes;
static size_t attribute_count;
static char device_name[256];
static uint64_t device_bytes;

static void learn(void) {
    struct device_request request;
    struct device_reply reply;
    size_t bytes;
    lock();
    if (!attributes) {
        ASK(DEVICE, request, reply);
        device_bytes = reply.memory_bytes;
        const uint8_t *payload = reply_payload(&bytes);
        memcpy(device_name, payload, sizeof device_name);
        attribute_count = (bytes - sizeof device_name) / sizeof(Attribute);
        attributes = malloc(bytes);
        memcpy(attributes, payload + sizeof device_name, bytes - sizeof device_name);
    }
    unlock();
}

static int value_of(int number) {
    learn();
    for (size_t k = 0; k < attribute_count; k++)
        if (attributes[k].number == number) return attributes[k].value;
    return 0;
}

const char *name_of_device(void) {
    learn();
    return device_name;
}
size_t bytes_of_device(void) {
    learn();
    return device_bytes;
}

PUBLIC Error cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (device) return failed(INVALID_DEVICE);
    *value = value_of(attribute);
    return failed(SUCCESS);
}

static void describe(Properties *p) {
    memset(p, 0, sizeof *p);
    learn();
    memcpy(p->name, device_name, sizeof p->name);
    p->global_bytes = device_bytes;
    p->shared_bytes_per_block = value_of(8), p->registers_per_block = value_of(12), p->warp_size = value_of(10);
    p->max_pitch = value_of(11), p->max_threads_per_block = value_of(1), p->const_bytes = value_of(9);
    for (int k = 0; k < 3; k++) p->max_block[k] = value_of(2 + k), p->max_grid[k] = value_of(5 + k);
    p->major = value_of(75), p->minor = value_of(76), p->sm_count = value_of(16), p->maps_host_memory = value_of(19);
    p->texture_alignment = value_of(14), p->texture_pitch_alignment = value_of(51), p->surface_alignment = value_of(30);
    p->texture_1d = value_of(21), p->texture_2d[0] = value_of(22), p->texture_2d[1] = value_of(23);
    p->texture_2d_linear[0] = value_of(70), p->texture_2d_linear[1] = value_of(71);
    p->texture_2d_linear[2] = value_of(72);
    for (int k = 0; k < 3; k++) p->texture_3d[k] = value_of(24 + k), p->texture_2d_layered[k] = value_of(27 + k);
    p->texture_1d_layered[0] = value_of(42), p->texture_1d_layered[1] = value_of(43);
    p->concurrent_kernels = value_of(31), p->copy_engines = value_of(40), p->unified_addressing = value_of(41);
    p->memory_bus_bits = value_of(37), p->l2_bytes = value_of(38), p->max_threads_per_sm = value_of(39);
    p->priorities = value_of(78), p->global_l1 = value_of(79), p->local_l1 = value_of(80);
    p->shared_bytes_per_sm = value_of(81), p->registers_per_sm = value_of(82), p->managed = value_of(83);
    p->concurrent_managed = value_of(89), p->cooperative = value_of(95), p->preemption = value_of(90);
    p->shared_bytes_per_block_opt_in = value_of(97), p->max_blocks_per_sm = value_of(106);
    p->persisting_l2_bytes = value_of(108), p->access_window = value_of(109);
    p->reserved_shared_bytes = (size_t)value_of(111);
#if RUNTIME > 11
    p->registers_host_memory = value_of(99), p->pools = value_of(115), p->clusters = value_of(120);
#endif
#if RUNTIME < 13
    p->clock_khz = value_of(13), p->memory_clock_khz = value_of(36), p->overlap = value_of(15);
    p->single_to_double = value_of(87);
#endif
}

PUBLIC Error cudaGetDeviceProperties(Properties *properties, int device) {
    if (device) return failed(INVALID_DEVICE);
    describe(properties);
    return failed(SUCCESS);
}
PUBLIC Error cudaGetDeviceProperties_v2(Properties *properties, int device) {
    return cudaGetDeviceProperties(properties, device);
}

PUBLIC Error cudaGetDeviceCount(int *count) { *count = 1; return failed(SUCCESS); }
PUBLIC Error cudaGetDevice(int *device) { *device = 0; return failed(SUCCESS); }
PUBLIC Error cudaSetDevice(int device) {
    if (!device) use_primary();
    return failed(device ? INVALID_DEVICE : SUCCESS);
}
PUBLIC Error cudaInitDevice(int device, unsigned a, unsigned b) { (void)a, (void)b; return cudaSetDevice(device); }
PUBLIC Error cudaChooseDevice(int *device, const void *wanted) { (void)wanted; *device = 0; return failed(SUCCESS); }
PUBLIC Error cudaSetValidDevices(int *devices, int count) { (void)devices, (void)count; return failed(SUCCESS); }
static unsigned device_flags;  // how the host waits
PUBLIC Error cudaSetDeviceFlags(unsigned flags) { device_flags = flags; return failed(SUCCESS); }
PUBLIC Error cudaGetDeviceFlags(unsigned *flags) { *flags = device_flags; return failed(SUCCESS); }
PUBLIC Error cudaDeviceReset(void) { print_pending(); return failed(SUCCESS); }
PUBLIC Error cudaThreadExit(void) { return cudaDeviceReset(); }
PUBLIC Error cudaDriverGetVersion(int *version) { *version = RUNTIME * 1000; return failed(SUCCESS); }
PUBLIC Error cudaRuntimeGetVersion(int *version) { *version = RUNTIME * 1000; return failed(SUCCESS); }
PUBLIC Error cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a, (void)b; *can = 0; return failed(SUCCESS); }
PUBLIC Error cudaDeviceGetCacheConfig(int *preference) { *preference = 0; return failed(SUCCESS); }
PUBLIC Error cudaDeviceSetCacheConfig(int preference) { (void)preference; return failed(SUCCESS); }
PUBLIC Error cudaDeviceGetSharedMemConfig(int *width) { *width = 1; return failed(SUCCESS); }
PUBLIC Error cudaDeviceSetSharedMemConfig(int width) { (void)width; return failed(SUCCESS); }
PUBLIC Error cudaCtxResetPersistingL2Cache(void) { return failed(SUCCESS); }
PUBLIC Error cudaProfilerStart(void) { return failed(SUCCESS); }
PUBLIC Error cudaProfilerStop(void) { return failed(SUCCESS); }

enum { LIMITS = 7 };
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20};  // stack, printf, heap
PUBLIC Error cudaDeviceGetLimit(size_t *value, int limit) {
    if (limit < 0 || limit >= LIMITS) return failed(UNSUPPORTED_LIMIT);
    *value = limits[limit];
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceSetLimit(int limit, size_t value) {
    if (limit < 0 || limit >= LIMITS) return failed(UNSUPPORTED_LIMIT);
    limits[limit] = value;
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, (size_t)length, "0000:%02x:00.0", device);
    return failed(SUCCESS);
}
PUBLIC Error cudaDeviceGetByPCIBusId(int *device, const char *text) { (void)text; *device = 0; return failed(SUCCESS); }

static const struct { Error error; const char *name, *text; } errors[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {INITIALIZATION_ERROR, "cudaErrorInitializationError", "initialization error"},
    {INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {INVALID_PITCH, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {INVALID_SYMBOL, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {INVALID_TEXTURE, "cudaErrorInvalidTexture", "invalid texture reference"},
    {INVALID_DIRECTION, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {INVALID_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {INVALID_IMAGE, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_LIMIT, "cudaErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {NOT_READY, "cudaErrorNotReady", "device not ready"},
    {ILLEGAL_ADDRESS, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {PEER_NOT_ENABLED, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {LAUNCH_FAILURE, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {UNJOINED, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {IMPLICIT, "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURED_EVENT, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {INVALID_CLUSTER, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
    {910, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed: the topology changed"},
    {UNKNOWN, "cudaErrorUnknown", "unknown error"},
};

PUBLIC const char *cudaGetErrorName(Error error) {
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].error == error) return errors[k].name;
    return "unrecognized error code";
}
PUBLIC const char *cudaGetErrorString(Error error) {
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].error == error) return errors[k].text;
    return "unrecognized error code";
}
