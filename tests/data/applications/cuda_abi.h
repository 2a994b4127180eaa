// CUDA's runtime as a program compiled by nvcc sees it, as far as the tests call it; and a fat binary made by hand.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Dim3;
typedef void *Stream, *Event, *Graph;
typedef struct { void *function; Dim3 grid, block; unsigned shared_bytes; void **arguments, **extra; } KernelNode;
typedef struct { int x, y, z, w, kind; } Format;

void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocManaged(void **, size_t, unsigned);
int cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
int cudaHostGetDevicePointer(void **, void *, unsigned), cudaMallocAsync(void **, size_t, Stream), cudaFreeAsync(void *, Stream);
int cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t);
int cudaMemcpyAsync(void *, const void *, size_t, int, Stream), cudaMemsetAsync(void *, int, size_t, Stream);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMallocPitch(void **, size_t *, size_t, size_t);
int cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int);
int cudaLaunchKernel(const void *, Dim3, Dim3, void **, size_t, Stream);
int cudaLaunchCooperativeKernel(const void *, Dim3, Dim3, void **, size_t, Stream);
int cudaFuncSetAttribute(const void *, int, int);
int cudaDeviceSynchronize(void), cudaStreamSynchronize(Stream);
int cudaGetLastError(void), cudaPeekAtLastError(void);
const char *cudaGetErrorName(int);
int cudaStreamCreate(Stream *), cudaStreamCreateWithFlags(Stream *, unsigned), cudaStreamWaitEvent(Stream, Event, unsigned);
int cudaEventCreate(Event *), cudaEventRecord(Event, Stream), cudaEventElapsedTime(float *, Event, Event);
int cudaLaunchHostFunc(Stream, void (*)(void *), void *);
int cudaStreamBeginCapture(Stream, int), cudaStreamEndCapture(Stream, Graph *), cudaGraphCreate(Graph *, unsigned);
int cudaGraphInstantiate(Graph *, Graph, unsigned long long), cudaGraphLaunch(Graph, Stream);
int cudaGraphAddKernelNode(void **, Graph, void *const *, size_t, const KernelNode *);
int cudaDeviceGetAttribute(int *, int, int), cudaGetDeviceProperties(void *, int), cudaGetDeviceCount(int *);
int cudaOccupancyAvailableDynamicSMemPerBlock(size_t *, const void *, int, int);
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
int cudaMallocArray(void **, const Format *, size_t, size_t, unsigned), cudaFreeArray(void *);
int cudaMemcpy2DToArray(void *, size_t, size_t, const void *, size_t, size_t, size_t, int);
int cudaCreateTextureObject(uint64_t *, const void *, const void *, const void *);
int cudaImportExternalMemory(void **, const void *);

// A wrapper around a fat binary with one entry: PTX, not compressed
static inline void *fat_binary(const char *ptx) {
    size_t length = strlen(ptx) + 1, padded = (length + 7) / 8 * 8;
    uint8_t *fat = calloc(1, 16 + 64 + padded);
    struct { uint32_t magic, version; void *data, *rest; } *wrapper = calloc(1, sizeof *wrapper);
    uint64_t all = 64 + padded;
    uint32_t fields[] = {0xBA55ED50, 1 | 16 << 16}, entry[] = {1 | 257 << 16, 64};
    memcpy(fat, fields, 8), memcpy(fat + 8, &all, 8), memcpy(fat + 16, entry, 8), memcpy(fat + 24, &padded, 8);
    uint32_t architecture = 80;
    memcpy(fat + 16 + 28, &architecture, 4);
    memcpy(fat + 80, ptx, length);
    wrapper->magic = 0x466243B1, wrapper->version = 1, wrapper->data = fat;
    return wrapper;
}

static inline void check(int error, int wanted, const char *what) {
    if (error != wanted) printf("FAILED: %s gives %d (%s), not %d\n", what, error, cudaGetErrorName(error), wanted), exit(1);
}
#define OK(call) check(call, 0, #call)
#define FAILS(number, call) check(call, number, #call)
#define HOLDS(condition) do { if (!(condition)) printf("FAILED: %s\n", #condition), exit(1); } while (0)

static const char *const ptx =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".const .align 4 .f32 offset;\n.global .align 4 .u32 launches;\n.global .align 4 .u32 shared_count;\n"
    ".visible .entry add(.param .u64 pa, .param .u64 pb, .param .u32 pn) {\n"
    " .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>;\n"
    " mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;\n"
    " setp.ne.u32 %p2, %r4, 0; @%p2 bra L; red.global.add.u32 [launches], 1; L:\n"
    " ld.param.u32 %r5, [pn]; setp.ge.u32 %p1, %r4, %r5; @%p1 ret;\n"
    " ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; mul.wide.u32 %rd3, %r4, 4;\n"
    " add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;\n"
    " ld.global.f32 %f1, [%rd4]; ld.global.f32 %f2, [%rd5]; ld.const.f32 %f3, [offset];\n"
    " add.f32 %f4, %f1, %f2; add.f32 %f5, %f4, %f3; st.global.f32 [%rd5], %f5; ret; }\n"
    ".visible .entry beyond(.param .u64 p) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [p];\n"
    " st.global.u32 [%rd1+65536], 1; ret; }\n"
    ".visible .entry look(.param .u64 t, .param .u64 out) { .reg .b64 %rd<4>; .reg .f32 %f<9>; .reg .b32 %r<4>;\n"
    " ld.param.u64 %rd1, [t]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y;\n"
    " cvt.rn.f32.u32 %f1, %r1; cvt.rn.f32.u32 %f2, %r2;\n"
    " tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}];\n"
    " mad.lo.u32 %r3, %r2, 5, %r1; mul.wide.u32 %rd3, %r3, 4; add.u64 %rd2, %rd2, %rd3;\n"
    " st.global.f32 [%rd2], %f3; ret; }\n"
    // as cooperative groups wait for the whole grid: each block adds 1, the last one enough to turn the highest bit
    ".visible .entry together(.param .u64 p, .param .u32 blocks) { .reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %rd<6>;\n"
    " mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; cvt.u64.u32 %rd1, %r1; cvt.u64.u32 %rd2, %r2;\n"
    " shl.b64 %rd1, %rd1, 32; or.b64 %rd1, %rd1, %rd2; ld.param.u64 %rd3, [p]; ld.param.u32 %r3, [blocks];\n"
    " red.global.add.u32 [%rd3], 1; mov.u32 %r4, %ctaid.x; setp.eq.u32 %p1, %r4, 0; mov.u32 %r5, 1;\n"
    " sub.u32 %r6, 0x80000001, %r3; selp.b32 %r5, %r6, %r5, %p1;\n"
    " atom.global.add.u32 %r7, [%rd1+4], %r5;\n"
    "W: ld.volatile.global.u32 %r8, [%rd1+4]; xor.b32 %r9, %r8, %r7; and.b32 %r9, %r9, 0x80000000;\n"
    " setp.eq.u32 %p2, %r9, 0; @%p2 bra W;\n"
    " ld.volatile.global.u32 %r10, [%rd3]; mul.wide.u32 %rd4, %r4, 4; add.u64 %rd5, %rd3, %rd4;\n"
    " st.global.u32 [%rd5+4], %r10; ret; }\n"
    ".visible .entry count() { .reg .b32 %r<2>; red.global.add.u32 [shared_count], 1; ret; }\n";
static char add, beyond, look, count, together, offset, launches;  // host addresses stand for what is on the device
static unsigned *shared_count;

__attribute__((constructor)) static void registered(void) {
    void **handle = __cudaRegisterFatBinary(fat_binary(ptx));
    __cudaRegisterFunction(handle, &add, "add", "add", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, &beyond, "beyond", "beyond", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, &look, "look", "look", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, &count, "count", "count", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, &together, "together", "together", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(handle, &offset, "offset", "offset", 0, 4, 1, 0);
    __cudaRegisterVar(handle, &launches, "launches", "launches", 0, 4, 0, 0);
    __cudaRegisterManagedVar(handle, (void **)&shared_count, "shared_count", "shared_count", 0, 4, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
}

static inline int launch_add(float *a, float *b, unsigned n, Stream stream) {
    void *arguments[] = {&a, &b, &n};
    return cudaLaunchKernel(&add, (Dim3){(n + 127) / 128, 1, 1}, (Dim3){128, 1, 1}, arguments, 0, stream);
}
