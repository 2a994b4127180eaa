// The driver API's launches, occupancy, streams, events, and graphs that are captured.
#include "public_calls.h"

// cuLaunchKernel's `extra`: a parameter block that is made already
static Error given_block(const Kernel *function, void **extra, uint8_t **block) {
    const void *data = NULL;
    size_t bytes = 0;
    for (; *extra; extra += 2) {
        if (*extra == (void *)1) data = extra[1];
        else if (*extra == (void *)2) bytes = *(const size_t *)extra[1];
        else return INVALID_VALUE;
    }
    *block = calloc(1, function->parameter_bytes + 1);
    memcpy(*block, data, data && bytes < function->parameter_bytes ? bytes : data ? function->parameter_bytes : 0);
    return SUCCESS;
}

static Error launch(Kernel *function, Dim3 grid, Dim3 block, size_t shared_bytes, LaunchTraits traits, Stream *stream,
                    void **arguments, void **extra) {
    Operation operation = {.what = LAUNCH};
    uint8_t *parameters = NULL;
    Error error = function ? resolve(function) : INVALID_HANDLE;
    if (!error && extra) error = given_block(function, extra, &parameters);
    if (!error && !extra && function->count && !arguments) error = INVALID_VALUE;
    if (!error) error = check_cluster(function, traits.cluster);
    if (error) return of_driver(error);
    operation.launch.kernel = function, operation.launch.grid = grid, operation.launch.block = block;
    operation.launch.shared_bytes = shared_bytes;
    operation.launch.cooperative = traits.cooperative, operation.launch.cluster = traits.cluster;
    operation.launch.programmatic = traits.programmatic;
    operation.launch.parameters = extra ? parameters : packed(function, arguments);
    error = DRIVER(submit(&operation, stream));
    free(operation.launch.parameters);
    return error;
}

PUBLIC Error cuLaunchKernel(Kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared_bytes, Stream *stream, void **arguments, void **extra) {
    return launch(function, (Dim3){gx, gy, gz}, (Dim3){bx, by, bz}, shared_bytes, (LaunchTraits){0}, stream, arguments,
                  extra);
}
PUBLIC Error cuLaunchCooperativeKernel(Kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                       unsigned by, unsigned bz, unsigned shared_bytes, Stream *stream,
                                       void **arguments) {
    LaunchTraits traits = {.cooperative = 1};
    return launch(function, (Dim3){gx, gy, gz}, (Dim3){bx, by, bz}, shared_bytes, traits, stream, arguments, NULL);
}

typedef struct {
    Dim3 grid, block; unsigned shared_bytes; Stream *stream; LaunchAttribute *attributes; unsigned count;
} Configuration;
PUBLIC Error cuLaunchKernelEx(const Configuration *c, Kernel *function, void **arguments, void **extra) {
    LaunchTraits traits = traits_of(c->attributes, c->count);
    if (traits.records) return DRIVER(missing(MISSING_RECORDS));
    return launch(function, c->grid, c->block, c->shared_bytes, traits, c->stream, arguments, extra);
}

PUBLIC Error cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Kernel *function, int threads,
                                                                  size_t shared_bytes, unsigned flags) {
    if (!function) return INVALID_HANDLE;
    return DRIVER(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, flags));
}
PUBLIC Error cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel *function, int threads,
                                                         size_t shared_bytes) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

PUBLIC Error cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, Kernel *function, int blocks, int threads) {
    return function ? DRIVER(cudaOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, threads)) : INVALID_HANDLE;
}

// The largest thread block of those that fill an SM most
PUBLIC Error cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, Kernel *function,
                                                       size_t (*shared_of)(int), size_t shared_bytes, int limit,
                                                       unsigned flags) {
    int most, best = 0, sms;
    Error error = cuFuncGetAttribute(&most, 0, function);
    if (!error) error = cuDeviceGetAttribute(&sms, 16, 0);
    if (limit > 0 && limit < most) most = limit;
    for (int threads = most / 32 * 32; !error && threads > 0; threads -= 32) {
        int held;
        size_t bytes = shared_of ? shared_of(threads) : shared_bytes;
        error = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&held, function, threads, bytes, flags);
        if (error || held * threads <= best) continue;
        best = held * threads, *block = threads, *grid = held * sms;
    }
    return error;
}
PUBLIC Error cuOccupancyMaxPotentialBlockSize(int *grid, int *block, Kernel *function, size_t (*shared_of)(int),
                                              size_t shared_bytes, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared_bytes, limit, 0);
}

PUBLIC Error cuStreamCreate(Stream **stream, unsigned flags) { return DRIVER(cudaStreamCreateWithFlags(stream, flags)); }
PUBLIC Error cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    return DRIVER(cudaStreamCreateWithPriority(stream, flags, priority));
}
PUBLIC Error cuStreamDestroy_v2(Stream *stream) { return DRIVER(cudaStreamDestroy(stream)); }
PUBLIC Error cuStreamSynchronize(Stream *stream) { return DRIVER(cudaStreamSynchronize(stream)); }
PUBLIC Error cuStreamQuery(Stream *stream) { return DRIVER(cudaStreamQuery(stream)); }
PUBLIC Error cuStreamGetFlags(Stream *stream, unsigned *flags) { return DRIVER(cudaStreamGetFlags(stream, flags)); }
PUBLIC Error cuStreamGetPriority(Stream *stream, int *priority) {
    return DRIVER(cudaStreamGetPriority(stream, priority));
}
PUBLIC Error cuStreamGetId(Stream *stream, unsigned long long *id) { return DRIVER(cudaStreamGetId(stream, id)); }
PUBLIC Error cuStreamGetCtx(Stream *stream, Context **context) { (void)stream; return cuCtxGetCurrent(context); }
PUBLIC Error cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    return event ? DRIVER(cudaStreamWaitEvent(stream, event, flags)) : INVALID_HANDLE;
}
PUBLIC Error cuStreamAddCallback(Stream *stream, void (*function)(Stream *, Error, void *), void *argument,
                                 unsigned flags) {
    return DRIVER(cudaStreamAddCallback(stream, function, argument, flags));
}
PUBLIC Error cuLaunchHostFunc(Stream *stream, void (*function)(void *), void *argument) {
    return DRIVER(cudaLaunchHostFunc(stream, function, argument));
}
PUBLIC Error cuStreamAttachMemAsync(Stream *stream, uint64_t pointer, size_t bytes, unsigned flags) {
    return DRIVER(cudaStreamAttachMemAsync(stream, (void *)pointer, bytes, flags));
}

PUBLIC Error cuEventCreate(Event **event, unsigned flags) { return DRIVER(cudaEventCreateWithFlags(event, flags)); }
PUBLIC Error cuEventDestroy_v2(Event *event) { return DRIVER(cudaEventDestroy(event)); }
PUBLIC Error cuEventRecord(Event *event, Stream *stream) { return DRIVER(cudaEventRecord(event, stream)); }
PUBLIC Error cuEventRecordWithFlags(Event *event, Stream *stream, unsigned flags) {
    return DRIVER(cudaEventRecordWithFlags(event, stream, flags));
}
PUBLIC Error cuEventSynchronize(Event *event) { return DRIVER(cudaEventSynchronize(event)); }
PUBLIC Error cuEventQuery(Event *event) { return DRIVER(cudaEventQuery(event)); }
PUBLIC Error cuEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    return DRIVER(cudaEventElapsedTime(milliseconds, start, end));
}
PUBLIC Error cuEventElapsedTime_v2(float *milliseconds, Event *start, Event *end) {
    return DRIVER(cudaEventElapsedTime(milliseconds, start, end));
}

PUBLIC Error cuStreamBeginCapture_v2(Stream *stream, int mode) { return DRIVER(cudaStreamBeginCapture(stream, mode)); }
PUBLIC Error cuStreamEndCapture(Stream *stream, Graph **graph) { return DRIVER(cudaStreamEndCapture(stream, graph)); }
PUBLIC Error cuStreamIsCapturing(Stream *stream, int *status) { return DRIVER(cudaStreamIsCapturing(stream, status)); }
PUBLIC Error cuGraphInstantiateWithFlags(Graph **executable, Graph *graph, unsigned long long flags) {
    return DRIVER(cudaGraphInstantiate(executable, graph, flags));
}
PUBLIC Error cuGraphLaunch(Graph *executable, Stream *stream) { return DRIVER(cudaGraphLaunch(executable, stream)); }
PUBLIC Error cuGraphDestroy(Graph *graph) { return DRIVER(cudaGraphDestroy(graph)); }
PUBLIC Error cuGraphExecDestroy(Graph *executable) { return DRIVER(cudaGraphExecDestroy(executable)); }
