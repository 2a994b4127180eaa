// Launches, and what a program asks about kernels before it launches them.
#include "public_calls.h"

typedef struct { Dim3 grid, block; size_t shared_bytes; Stream *stream; } Configuration;
static __thread Configuration pushed[16];
static __thread unsigned pushed_count;

PUBLIC unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, Stream *stream) {
    if (pushed_count == 16) return 1;
    pushed[pushed_count++] = (Configuration){grid, block, shared_bytes, stream};
    return 0;
}

PUBLIC Error __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared_bytes, Stream **stream) {
    if (!pushed_count) return failed(INVALID_CONFIGURATION);
    Configuration *top = &pushed[--pushed_count];
    *grid = top->grid, *block = top->block, *shared_bytes = top->shared_bytes, *stream = top->stream;
    return SUCCESS;
}

// The parameter block, of the arguments' addresses
uint8_t *packed(const Kernel *kernel, void **arguments) {
    uint8_t *block = calloc(1, kernel->parameter_bytes + 1);
    for (unsigned k = 0; k < kernel->count; k++) memcpy(block + kernel->offsets[k], arguments[k], kernel->sizes[k]);
    return block;
}

enum { PORTABLE_BLOCKS = 8, LARGE_CLUSTERS = 14 };  // of a cluster; a cudaFuncAttribute
Error check_cluster(const Kernel *kernel, Dim3 cluster) {
    return cluster.x * cluster.y * cluster.z > PORTABLE_BLOCKS && !kernel->large_clusters ? INVALID_CLUSTER : SUCCESS;
}

static Error launch(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes, Stream *stream,
                    LaunchTraits traits) {
    Kernel *kernel = kernel_of(function);
    Error error = resolve(kernel);
    if (!error) error = check_cluster(kernel, traits.cluster);
    if (error) return failed(error);
    Operation operation = {.what = LAUNCH};
    operation.launch.kernel = kernel, operation.launch.grid = grid, operation.launch.block = block;
    operation.launch.shared_bytes = shared_bytes;
    operation.launch.cooperative = traits.cooperative, operation.launch.cluster = traits.cluster;
    operation.launch.programmatic = traits.programmatic;
    operation.launch.parameters = packed(kernel, arguments);
    error = submit(&operation, stream);
    free(operation.launch.parameters);
    return error;
}

PUBLIC Error cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes,
                              Stream *stream) {
    return launch(function, grid, block, arguments, shared_bytes, stream, (LaunchTraits){0});
}
PUBLIC Error __cudaLaunchKernel(const void *function, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes,
                                Stream *stream) {
    return launch(function, grid, block, arguments, shared_bytes, stream, (LaunchTraits){0});
}
PUBLIC Error cudaLaunchCooperativeKernel(const void *function, Dim3 grid, Dim3 block, void **arguments,
                                         size_t shared_bytes, Stream *stream) {
    return launch(function, grid, block, arguments, shared_bytes, stream, (LaunchTraits){.cooperative = 1});
}

typedef struct {
    Dim3 grid, block; size_t shared_bytes; Stream *stream; LaunchAttribute *attributes; unsigned count;
} LaunchConfiguration;
enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_PROGRAMMATIC = 6, ATTRIBUTE_PROGRAMMATIC_EVENT = 7, ATTRIBUTE_COMPLETION_EVENT = 12 };

LaunchTraits traits_of(const LaunchAttribute *attributes, unsigned count) {
    LaunchTraits found = {0};
    for (unsigned k = 0; k < count; k++) {
        if (attributes[k].id == ATTRIBUTE_COOPERATIVE) found.cooperative = attributes[k].value.number;
        if (attributes[k].id == ATTRIBUTE_PROGRAMMATIC) found.programmatic = attributes[k].value.number;
        if (attributes[k].id == ATTRIBUTE_CLUSTER) found.cluster = attributes[k].value.size;
        found.records |= attributes[k].id == ATTRIBUTE_PROGRAMMATIC_EVENT || attributes[k].id == ATTRIBUTE_COMPLETION_EVENT;
    }
    return found;
}

PUBLIC Error cudaLaunchKernelExC(const LaunchConfiguration *c, const void *function, void **arguments) {
    LaunchTraits traits = traits_of(c->attributes, c->count);
    if (traits.records) return missing(MISSING_RECORDS);  // who waits for one would wait for nothing
    return launch(function, c->grid, c->block, arguments, c->shared_bytes, c->stream, traits);
}

// As many clusters as thread blocks that SMs hold make up: which SMs lie near enough together is not modelled
PUBLIC Error cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const LaunchConfiguration *c) {
    Dim3 size = traits_of(c->attributes, c->count).cluster;
    unsigned blocks = size.x * size.y * size.z;
    int held = 0, sms = 0;
    Dim3 b = c->block;
    Error error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, function, (int)(b.x * b.y * b.z), c->shared_bytes);
    if (!error) error = cudaDeviceGetAttribute(&sms, 16, 0);
    *clusters = held * sms / (int)(blocks ? blocks : 1);
    return failed(error);
}
PUBLIC Error cudaOccupancyMaxPotentialClusterSize(int *blocks, const void *function, const LaunchConfiguration *c) {
    (void)c;
    Kernel *kernel = kernel_of(function);
    Error error = resolve(kernel);
    *blocks = !error && kernel->large_clusters ? 2 * PORTABLE_BLOCKS : PORTABLE_BLOCKS;
    return failed(error);
}

typedef struct {
    size_t shared_bytes, const_bytes, local_bytes;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared_bytes, carveout;
} FunctionAttributes;

Error attributes_of(Kernel *kernel, struct attributes_reply *reply) {
    Error error = resolve(kernel);
    if (error) return error;
    struct attributes_request request = {kernel->id};
    return ask(MESSAGE_ATTRIBUTES, &request, sizeof request, NULL, 0, reply, sizeof *reply);
}

PUBLIC Error cudaFuncGetAttributes(FunctionAttributes *attributes, const void *function) {
    struct attributes_reply reply = {0};
    Kernel *kernel = kernel_of(function);
    Error error = attributes_of(kernel, &reply);
    if (error) return failed(error);
    *attributes = (FunctionAttributes){
        reply.shared_bytes, reply.const_bytes, reply.local_bytes, (int)reply.max_threads, (int)reply.registers,
        (int)reply.ptx_version, (int)reply.binary_version, 0,
        (int)reply.most_dynamic_shared_bytes, -1,
    };
    return failed(SUCCESS);
}

// All but how much dynamic shared memory and how large clusters launches may ask for are hints
Error set_attribute(Kernel *kernel, int attribute, int value) {
    Error error = resolve(kernel);
    if (!error && attribute == LARGE_CLUSTERS) kernel->large_clusters = value;
    if (error || attribute != 8) return error;
    struct let_share_request request = {kernel->id, (uint64_t)value};
    struct let_share_reply reply;
    return ASK(LET_SHARE, request, reply);
}
PUBLIC Error cudaFuncSetAttribute(const void *function, int attribute, int value) {
    return failed(set_attribute(kernel_of(function), attribute, value));
}
PUBLIC Error cudaFuncSetCacheConfig(const void *function, int preference) {
    (void)function, (void)preference;
    return failed(SUCCESS);
}
PUBLIC Error cudaFuncSetSharedMemConfig(const void *function, int width) {
    (void)function, (void)width;
    return failed(SUCCESS);
}

PUBLIC Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                    size_t shared_bytes, unsigned flags) {
    (void)flags;
    Kernel *kernel = kernel_of(function);
    Error error = resolve(kernel);
    if (error) return failed(error);
    struct occupancy_request request = {kernel->id, (uint64_t)threads, shared_bytes};
    struct occupancy_reply reply = {0};
    error = ASK(OCCUPANCY, request, reply);
    *blocks = (int)reply.blocks;
    return failed(error);
}
PUBLIC Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                           size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

// What so many thread blocks on an SM leave each of them: CUDA gives shared memory by 128 bytes
PUBLIC Error cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int threads) {
    struct attributes_reply reply = {0};
    int of_sm, most, kept, held = 0;
    Error error = blocks < 1 || threads < 1 ? INVALID_VALUE : attributes_of(kernel_of(function), &reply);
    if (!error) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, function, threads, 0);
    if (!error && held < blocks) error = INVALID_VALUE;
    if (error) return failed(error);
    cudaDeviceGetAttribute(&of_sm, 81, 0), cudaDeviceGetAttribute(&most, 97, 0), cudaDeviceGetAttribute(&kept, 111, 0);
    int of_block = of_sm / blocks / 128 * 128 - kept;
    *bytes = (size_t)(of_block < most ? of_block : most) - reply.shared_bytes;
    return failed(SUCCESS);
}
