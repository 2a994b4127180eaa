// The driver API: the device, contexts and errors. Handles of both APIs are the same things; what they share with the
// runtime they do by its functions, without touching what cudaGetLastError remembers.
#include "public_calls.h"

#include <dlfcn.h>

// Two numbers that only the runtime has, and one that the driver has another name for
Error of_driver(Error error) {
    switch (error) {
        case INVALID_CONFIGURATION: return INVALID_VALUE;
        case INVALID_FUNCTION: return INVALID_HANDLE;
        case INVALID_SYMBOL: return NOT_FOUND;
        default: return error;
    }
}

static const struct { Error error; const char *name, *text; } errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_LIMIT, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {LAUNCH_FAILURE, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed: the topology changed"},
    {INVALID_CLUSTER, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cluster misconfiguration"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

PUBLIC Error cuGetErrorName(Error error, const char **name) {
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].error == error) return *name = errors[k].name, SUCCESS;
    return *name = NULL, INVALID_VALUE;
}
PUBLIC Error cuGetErrorString(Error error, const char **text) {
    for (size_t k = 0; k < sizeof errors / sizeof *errors; k++)
        if (errors[k].error == error) return *text = errors[k].text, SUCCESS;
    return *text = NULL, INVALID_VALUE;
}

PUBLIC Error cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    connect_once();
    return SUCCESS;
}
PUBLIC Error cuDriverGetVersion(int *version) { return DRIVER(cudaDriverGetVersion(version)); }
PUBLIC Error cuProfilerStart(void) { return SUCCESS; }
PUBLIC Error cuProfilerStop(void) { return SUCCESS; }

PUBLIC Error cuDeviceGet(int *device, int number) {
    if (number) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
}
PUBLIC Error cuDeviceGetCount(int *count) { return DRIVER(cudaGetDeviceCount(count)); }
PUBLIC Error cuDeviceGetAttribute(int *value, int attribute, int device) {
    return DRIVER(cudaDeviceGetAttribute(value, attribute, device));
}
PUBLIC Error cuDeviceGetName(char *name, int length, int device) {
    if (device || length < 1) return device ? INVALID_DEVICE : INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", name_of_device());
    return SUCCESS;
}
PUBLIC Error cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = bytes_of_device();
    return device ? INVALID_DEVICE : SUCCESS;
}
PUBLIC Error cuDeviceComputeCapability(int *major, int *minor, int device) {
    Error error = cuDeviceGetAttribute(major, 75, device);
    return error ? error : cuDeviceGetAttribute(minor, 76, device);
}
PUBLIC Error cuDeviceGetUuid_v2(uint8_t *uuid, int device) {
    memset(uuid, 0, 16);
    return device ? INVALID_DEVICE : SUCCESS;
}
PUBLIC Error cuDeviceGetUuid(uint8_t *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
PUBLIC Error cuDeviceGetPCIBusId(char *text, int length, int device) {
    return DRIVER(cudaDeviceGetPCIBusId(text, length, device));
}
PUBLIC Error cuDeviceCanAccessPeer(int *can, int a, int b) { return DRIVER(cudaDeviceCanAccessPeer(can, a, b)); }

// Contexts: of the one device, which all of them share; each thread has a stack of them
struct Context { unsigned flags; int users; };
static Context primary;
static __thread Context *current[32];
static __thread unsigned current_count;

static Context *top(void) { return current_count ? current[current_count - 1] : NULL; }
static Error push(Context *context) {
    if (current_count == sizeof current / sizeof *current) return INVALID_CONTEXT;
    current[current_count++] = context;
    return SUCCESS;
}

void use_primary(void) {
    if (!current_count) push(&primary);
}

PUBLIC Error cuCtxCreate_v2(Context **context, unsigned flags, int device) {
    if (device) return INVALID_DEVICE;
    *context = calloc(1, sizeof **context);
    (*context)->flags = flags;
    return push(*context);
}
PUBLIC Error cuCtxCreate_v3(Context **context, void *affinity, int count, unsigned flags, int device) {
    (void)affinity, (void)count;
    return cuCtxCreate_v2(context, flags, device);
}
PUBLIC Error cuCtxCreate_v4(Context **context, void *how, unsigned flags, int device) {
    (void)how;
    return cuCtxCreate_v2(context, flags, device);
}
PUBLIC Error cuCtxDestroy_v2(Context *context) {
    if (!context) return INVALID_CONTEXT;
    print_pending();
    while (current_count && top() == context) current_count--;
    if (context != &primary) free(context);
    return SUCCESS;
}
PUBLIC Error cuCtxPushCurrent_v2(Context *context) { return context ? push(context) : INVALID_CONTEXT; }
PUBLIC Error cuCtxPopCurrent_v2(Context **context) {
    if (!current_count) return INVALID_CONTEXT;
    current_count--;
    if (context) *context = current[current_count];
    return SUCCESS;
}
PUBLIC Error cuCtxSetCurrent(Context *context) {
    if (current_count) current_count--;
    return context ? push(context) : SUCCESS;
}
PUBLIC Error cuCtxGetCurrent(Context **context) { *context = top(); return SUCCESS; }
PUBLIC Error cuCtxGetDevice(int *device) { *device = 0; return top() ? SUCCESS : INVALID_CONTEXT; }
PUBLIC Error cuCtxGetFlags(unsigned *flags) {
    if (!top()) return INVALID_CONTEXT;
    *flags = top()->flags;
    return SUCCESS;
}
PUBLIC Error cuCtxGetApiVersion(Context *context, unsigned *version) {
    (void)context;
    *version = RUNTIME * 1000;
    return SUCCESS;
}
PUBLIC Error cuCtxSynchronize(void) { return DRIVER(cudaDeviceSynchronize()); }
PUBLIC Error cuCtxGetLimit(size_t *value, int limit) { return DRIVER(cudaDeviceGetLimit(value, limit)); }
PUBLIC Error cuCtxSetLimit(int limit, size_t value) { return DRIVER(cudaDeviceSetLimit(limit, value)); }
PUBLIC Error cuCtxGetCacheConfig(int *preference) { *preference = 0; return SUCCESS; }
PUBLIC Error cuCtxSetCacheConfig(int preference) { (void)preference; return SUCCESS; }
PUBLIC Error cuCtxGetSharedMemConfig(int *width) { *width = 1; return SUCCESS; }
PUBLIC Error cuCtxSetSharedMemConfig(int width) { (void)width; return SUCCESS; }
PUBLIC Error cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    return DRIVER(cudaDeviceGetStreamPriorityRange(least, greatest));
}

PUBLIC Error cuDevicePrimaryCtxRetain(Context **context, int device) {
    if (device) return INVALID_DEVICE;
    primary.users++, *context = &primary;
    return SUCCESS;
}
PUBLIC Error cuDevicePrimaryCtxRelease_v2(int device) {
    if (device || !primary.users) return device ? INVALID_DEVICE : INVALID_CONTEXT;
    primary.users--;
    print_pending();
    return SUCCESS;
}
PUBLIC Error cuDevicePrimaryCtxReset_v2(int device) { print_pending(); return device ? INVALID_DEVICE : SUCCESS; }
PUBLIC Error cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    primary.flags = flags;
    return device ? INVALID_DEVICE : SUCCESS;
}
PUBLIC Error cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = primary.flags, *active = primary.users > 0;
    return device ? INVALID_DEVICE : SUCCESS;
}

// A call has one name and several versions. Here are those of which the CUDA version that a program was built with
// decides, newest first; of all others the second is meant where there is one.
static const struct { const char *name, *symbol; int since; } versions[] = {
    {"cuCtxCreate", "cuCtxCreate_v4", 12050}, {"cuCtxCreate", "cuCtxCreate_v3", 11040},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 11040},
    {"cuMemAdvise", "cuMemAdvise_v2", 12020}, {"cuMemAdvise", "cuMemAdvise", 0},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12020}, {"cuMemPrefetchAsync", "cuMemPrefetchAsync", 0},
};

static void *own_function(const char *name) {
    Dl_info here;
    static void *library;
    if (!library && dladdr((void *)own_function, &here)) library = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return dlsym(library, name);
}

static const char *meant(const char *name, int version) {
    for (size_t k = 0; k < sizeof versions / sizeof *versions; k++)
        if (!strcmp(versions[k].name, name) && version >= versions[k].since) return versions[k].symbol;
    return NULL;
}

// Tables that are nowhere described: NVRTC looks for one, and does without
PUBLIC Error cuGetExportTable(const void **table, const void *id) {
    (void)table, (void)id;
    return NOT_FOUND;
}

PUBLIC Error cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    char second[256];
    const char *chosen = meant(name, version);
    (void)flags;
    snprintf(second, sizeof second, "%s_v2", name);
    *function = own_function(chosen ? chosen : second);
    if (!*function && !chosen) *function = own_function(name);
    if (status) *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}
PUBLIC Error cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

// The same for programs of the runtime
PUBLIC Error cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                              unsigned long long flags, int *status) {
    int missing_here;
    cuGetProcAddress_v2(name, function, (int)version, flags, &missing_here);
    if (status) *status = missing_here;
    return failed(SUCCESS);
}
PUBLIC Error cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, RUNTIME * 1000, flags, status);
}
