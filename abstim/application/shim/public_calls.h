// Public functions that parts of the shim call of each other.
#pragma once
#include "shim.h"

Error cuCtxGetCurrent(Context **context);
Error cuDeviceGetAttribute(int *value, int attribute, int device);
Error cuFuncGetAttribute(int *value, int attribute, Kernel *function);
Error cudaArrayGetInfo(ChannelFormat *format, Extent *extent, unsigned *flags, Array *array);
Error cudaCreateSurfaceObject(uint64_t *handle, const RuntimeResource *r);
Error cudaCreateTextureObject(uint64_t *handle, const RuntimeResource *r, const RuntimeSampling *s, const void
    *view);
Error cudaDeviceCanAccessPeer(int *can, int a, int b);
Error cudaDeviceGetAttribute(int *value, int attribute, int device);
Error cudaDeviceGetDefaultMemPool(void **pool, int device);
Error cudaDeviceGetLimit(size_t *value, int limit);
Error cudaDeviceGetPCIBusId(char *text, int length, int device);
Error cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
Error cudaDeviceSetLimit(int limit, size_t value);
Error cudaDeviceSynchronize(void);
Error cudaDriverGetVersion(int *version);
Error cudaEventCreateWithFlags(Event **event, unsigned flags);
Error cudaEventDestroy(Event *event);
Error cudaEventElapsedTime(float *milliseconds, Event *start, Event *end);
Error cudaEventQuery(Event *event);
Error cudaEventRecord(Event *event, Stream *stream);
Error cudaEventRecordWithFlags(Event *event, Stream *stream, unsigned flags);
Error cudaEventSynchronize(Event *event);
Error cudaFree(void *pointer);
Error cudaFreeArray(Array *array);
Error cudaFreeAsync(void *pointer, Stream *stream);
Error cudaFreeHost(void *pointer);
Error cudaFuncGetParamInfo(const void *function, size_t number, size_t *offset, size_t *bytes);
Error cudaGetChannelDesc(ChannelFormat *format, const Array *array);
Error cudaGetDeviceCount(int *count);
Error cudaGraphDestroy(Graph *graph);
Error cudaGraphExecDestroy(Graph *graph);
Error cudaGraphInstantiate(Graph **executable, Graph *graph, unsigned long long flags);
Error cudaGraphLaunch(Graph *graph, Stream *stream);
Error cudaHostAlloc(void **pointer, size_t bytes, unsigned flags);
Error cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
Error cudaHostGetFlags(unsigned *flags, void *host);
Error cudaHostRegister(void *host, size_t bytes, unsigned flags);
Error cudaHostUnregister(void *host);
Error cudaLaunchHostFunc(Stream *stream, void (*function)(void *), void *argument);
Error cudaMalloc(void **pointer, size_t bytes);
Error cudaMalloc3DArray(Array **array, const ChannelFormat *format, Extent extent, unsigned flags);
Error cudaMallocAsync(void **pointer, size_t bytes, Stream *stream);
Error cudaMallocFromPoolAsync(void **pointer, size_t bytes, void *pool, Stream *stream);
Error cudaMallocHost(void **pointer, size_t bytes);
Error cudaMallocManaged(void **pointer, size_t bytes, unsigned flags);
Error cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
Error cudaMemAdvise(const void *pointer, size_t bytes, int advice, int device);
Error cudaMemGetInfo(size_t *free_bytes, size_t *total);
Error cudaMemPoolGetAttribute(void *pool, int attribute, void *value);
Error cudaMemPoolSetAttribute(void *pool, int attribute, void *value);
Error cudaMemPoolTrimTo(void *pool, size_t bytes);
Error cudaMemPrefetchAsync(const void *pointer, size_t bytes, int device, Stream *stream);
Error cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
Error cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream *stream);
Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads, size_t
    shared_bytes, unsigned flags);
Error cudaStreamAddCallback(Stream *stream, void (*function)(Stream *, Error, void *), void *argument, unsigned
    flags);
Error cudaStreamAttachMemAsync(Stream *stream, void *pointer, size_t bytes, unsigned flags);
Error cudaStreamBeginCapture(Stream *stream, int mode);
Error cudaStreamCreateWithFlags(Stream **stream, unsigned flags);
Error cudaStreamCreateWithPriority(Stream **stream, unsigned flags, int priority);
Error cudaStreamDestroy(Stream *stream);
Error cudaStreamEndCapture(Stream *stream, Graph **graph);
Error cudaStreamGetFlags(Stream *stream, unsigned *flags);
Error cudaStreamGetId(Stream *stream, unsigned long long *id);
Error cudaStreamGetPriority(Stream *stream, int *priority);
Error cudaStreamIsCapturing(Stream *stream, int *status);
Error cudaStreamQuery(Stream *stream);
Error cudaStreamSynchronize(Stream *stream);
Error cudaStreamWaitEvent(Stream *stream, Event *event, unsigned flags);
