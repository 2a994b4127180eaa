// The driver API: what a program does that loads PTX by itself. Called without a header of CUDA.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Handle;
typedef uint64_t Address;
int cuInit(unsigned), cuDriverGetVersion(int *), cuDeviceGetCount(int *), cuDeviceGet(int *, int);
int cuDeviceGetName(char *, int, int), cuDeviceGetAttribute(int *, int, int), cuDeviceTotalMem_v2(size_t *, int);
int cuCtxCreate_v2(Handle *, unsigned, int), cuCtxDestroy_v2(Handle), cuCtxGetCurrent(Handle *), cuCtxSynchronize(void);
int cuCtxPushCurrent_v2(Handle), cuCtxPopCurrent_v2(Handle *), cuDevicePrimaryCtxRetain(Handle *, int);
int cuModuleLoadData(Handle *, const void *), cuModuleLoadDataEx(Handle *, const void *, unsigned, int *, void **);
int cuModuleLoad(Handle *, const char *), cuModuleGetFunction(Handle *, Handle, const char *), cuModuleUnload(Handle);
int cuModuleGetGlobal_v2(Address *, size_t *, Handle, const char *);
int cuLinkCreate_v2(unsigned, int *, void **, Handle *), cuLinkComplete(Handle, void **, size_t *), cuLinkDestroy(Handle);
int cuLinkAddData_v2(Handle, int, const void *, size_t, const char *, unsigned, int *, void **);
int cuMemAlloc_v2(Address *, size_t), cuMemFree_v2(Address), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAllocManaged(Address *, size_t, unsigned), cuMemHostAlloc(void **, size_t, unsigned);
int cuMemGetAddressRange_v2(Address *, size_t *, Address), cuPointerGetAttribute(void *, int, Address);
int cuMemcpyHtoD_v2(Address, const void *, size_t), cuMemcpyDtoH_v2(void *, Address, size_t);
int cuMemcpyDtoHAsync_v2(void *, Address, size_t, Handle), cuMemsetD32_v2(Address, unsigned, size_t);
int cuMemsetD16_v2(Address, uint16_t, size_t), cuMemcpy2D_v2(const void *);
int cuArrayCreate_v2(Handle *, const void *), cuArrayGetDescriptor_v2(void *, Handle), cuMemcpyAtoH_v2(void *, Handle, size_t, size_t);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
int cuStreamCreate(Handle *, unsigned), cuStreamSynchronize(Handle), cuStreamDestroy_v2(Handle);
int cuEventCreate(Handle *, unsigned), cuEventRecord(Handle, Handle), cuEventElapsedTime(float *, Handle, Handle);
int cuFuncGetAttribute(int *, int, Handle), cuFuncSetAttribute(Handle, int, int);
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, Handle, int, size_t);
int cuOccupancyMaxPotentialBlockSize(int *, int *, Handle, size_t (*)(int), size_t, int);
int cuGetErrorName(int, const char **), cuGetErrorString(int, const char **);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuTensorMapReplaceAddress(void *, void *), cuTensorMapEncodeIm2colWide(void);
int cuTensorMapEncodeTiled(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                           const uint32_t *, int, int, int, int);
int cuLaunchKernelEx(const void *, Handle, void **, void **), cuGraphCreate(Handle *, unsigned);
int cuGraphAddKernelNode_v2(Handle *, Handle, const Handle *, size_t, const void *);
int cuGraphInstantiateWithFlags(Handle *, Handle, unsigned long long), cuGraphLaunch(Handle, Handle);

static void check(int error, int wanted, const char *what) {
    const char *name = "?";
    cuGetErrorName(error, &name);
    if (error != wanted) printf("FAILED: %s gives %d (%s), not %d\n", what, error, name, wanted), exit(1);
}
#define OK(call) check(call, 0, #call)
#define FAILS(number, call) check(call, number, #call)
#define HOLDS(condition) do { if (!(condition)) printf("FAILED: %s\n", #condition), exit(1); } while (0)

#define HEAD ".version 8.0\n.target sm_80\n.address_size 64\n"
static const char ptx[] = HEAD
    ".const .align 4 .f32 factor;\n.global .align 4 .b32 table[4] = {1, 2, 3, 4};\n"
    ".visible .entry scale(.param .u64 p, .param .u32 n, .param .u8 extra) {\n"
    " .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %rd<5>; .reg .f32 %f<4>;\n"
    " mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;\n"
    " ld.param.u32 %r5, [n]; setp.ge.u32 %p1, %r4, %r5; @%p1 ret;\n"
    " ld.param.u64 %rd1, [p]; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd1, %rd2;\n"
    " ld.param.u8 %r6, [extra]; cvt.rn.f32.u32 %f3, %r6;\n"
    " ld.global.f32 %f1, [%rd3]; ld.const.f32 %f2, [factor]; fma.rn.f32 %f1, %f1, %f2, %f3;\n"
    " st.global.f32 [%rd3], %f1; ret; }\n"
    ".visible .entry beyond(.param .u64 p) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [p];\n"
    " st.global.u32 [%rd1+65536], 1; ret; }\n";
static const char caller[] = HEAD
    ".extern .func (.param .b32 r) twice(.param .b32 a);\n"
    ".visible .entry calls(.param .u64 p) { .reg .b32 %r<3>; .reg .b64 %rd<2>; ld.param.u64 %rd1, [p];\n"
    " ld.global.u32 %r1, [%rd1]; { .param .b32 a0; .param .b32 r0; st.param.b32 [a0], %r1;\n"
    " call (r0), twice, (a0); ld.param.b32 %r2, [r0]; } st.global.u32 [%rd1], %r2; ret; }\n";
static const char callee[] = HEAD
    ".visible .func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r<3>; ld.param.b32 %r1, [a];\n"
    " shl.b32 %r2, %r1, 1; st.param.b32 [r], %r2; ret; }\n";

enum { N = 1000 };
static Handle module, scale;

static void contexts(void) {
    int device, count, value;
    char name[64];
    size_t bytes;
    Handle context, other, found;
    OK(cuInit(0)), OK(cuDriverGetVersion(&value)), OK(cuDeviceGetCount(&count)), OK(cuDeviceGet(&device, 0));
    FAILS(101, cuDeviceGet(&device, 1));
    OK(cuDeviceGetName(name, sizeof name, device)), OK(cuDeviceTotalMem_v2(&bytes, device));
    OK(cuDeviceGetAttribute(&value, 16, device));
    printf("device %s, %d SMs\n", name, value);
    OK(cuCtxCreate_v2(&context, 0, device)), OK(cuDevicePrimaryCtxRetain(&other, device));
    OK(cuCtxPushCurrent_v2(other)), OK(cuCtxPopCurrent_v2(&found));
    HOLDS(found == other);
    OK(cuCtxGetCurrent(&found));
    HOLDS(found == context && bytes > 1 << 30);
}

static void modules(const char *path) {
    Handle nothing;
    Address address;
    size_t bytes;
    float factor = 3;
    unsigned table[4];
    FAILS(218, cuModuleLoadData(&nothing, "this is no PTX"));
    FAILS(301, cuModuleLoad(&nothing, "/no/such/file.ptx"));
    FILE *file = fopen(path, "w");
    fputs(ptx, file), fclose(file);
    OK(cuModuleLoad(&nothing, path)), OK(cuModuleUnload(nothing));
    OK(cuModuleLoadDataEx(&module, ptx, 0, NULL, NULL));
    FAILS(500, cuModuleGetFunction(&nothing, module, "absent"));
    FAILS(500, cuModuleGetGlobal_v2(&address, &bytes, module, "absent"));
    FAILS(400, cuModuleGetFunction(&nothing, NULL, "scale"));
    OK(cuModuleGetFunction(&scale, module, "scale"));
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "factor"));
    HOLDS(bytes == 4);
    OK(cuMemcpyHtoD_v2(address, &factor, 4));
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "table"));
    OK(cuMemcpyDtoH_v2(table, address, sizeof table));
    HOLDS(bytes == 16 && table[3] == 4);
}

static void launches(void) {
    Address a, start;
    Handle stream, first, last;
    float host[N], ms;
    unsigned n = N;
    uint8_t extra = 7;
    size_t bytes;
    struct { Address p; unsigned n; uint8_t extra; } block;
    OK(cuMemAlloc_v2(&a, sizeof host));
    FAILS(1, cuMemAlloc_v2(&start, 0));
    FAILS(2, cuMemAlloc_v2(&start, (size_t)1 << 44));
    OK(cuStreamCreate(&stream, 1)), OK(cuEventCreate(&first, 0)), OK(cuEventCreate(&last, 0));
    OK(cuMemsetD32_v2(a, 0x40000000, N));  // 2.0
    OK(cuEventRecord(first, stream));
    OK(cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, (void *[]){&a, &n, &extra}, NULL));
    OK(cuEventRecord(last, stream));
    OK(cuStreamSynchronize(stream)), OK(cuEventElapsedTime(&ms, first, last));
    block.p = a, block.n = N, block.extra = 1, bytes = sizeof block;
    OK(cuLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, NULL, (void *[]){(void *)1, &block, (void *)2, &bytes, NULL}));
    OK(cuMemcpyDtoHAsync_v2(host, a, sizeof host, stream));
    for (int k = 0; k < N; k++) HOLDS(host[k] == (2 * 3 + 7) * 3 + 1);
    printf("elapsed %.9f\n", ms);
    FAILS(1, cuLaunchKernel(scale, 1, 1, 1, 2048, 1, 1, 0, NULL, (void *[]){&a, &n, &extra}, NULL));
    FAILS(400, cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cuMemGetAddressRange_v2(&start, &bytes, a + 16));
    HOLDS(start == a && bytes == sizeof host);
    OK(cuStreamDestroy_v2(stream)), OK(cuMemFree_v2(a));
    FAILS(1, cuMemFree_v2(a));
}

static size_t shared_of(int threads) { return (size_t)threads * 16; }

static void questions(void) {
    int value, grid, block;
    uint8_t managed;
    Address m;
    void *function;
    const char *text;
    OK(cuFuncGetAttribute(&value, 0, scale)), OK(cuFuncSetAttribute(scale, 8, 65536));
    HOLDS(value == 1024);
    OK(cuFuncGetAttribute(&value, 8, scale));
    HOLDS(value == 65536);
    FAILS(1, cuFuncSetAttribute(scale, 8, 1 << 20)), FAILS(1, cuFuncSetAttribute(scale, 8, -1));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, scale, 128, 0));
    HOLDS(value > 1);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, scale, shared_of, 0, 0));
    HOLDS(block > 32 && block % 32 == 0 && grid > 0);
    OK(cuMemAllocManaged(&m, 64, 1));
    *(int *)m = 5;
    OK(cuPointerGetAttribute(&managed, 8, m));
    HOLDS(managed == 1);
    OK(cuMemsetD16_v2(m, 0x102, 2));
    HOLDS(*(int *)m == 0x1020102);
    OK(cuGetErrorString(700, &text));
    HOLDS(strstr(text, "illegal") && cuGetErrorString(12345, &text) == 1);
    OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, NULL));
    HOLDS(function == (void *)cuMemAlloc_v2);
    FAILS(500, cuGetProcAddress_v2("cuNothing", &function, 12000, 0, NULL));
}

static void arrays(void) {
    struct { size_t width, height; unsigned format, channels; } shape = {8, 4, 0x20, 1}, found;
    struct { size_t x, y; unsigned kind; const void *host; Address device; Handle array; size_t pitch; } places[2] = {0};
    struct { size_t places[14], width, height; } copy;
    float host[32], back[32];
    Handle array;
    for (int k = 0; k < 32; k++) host[k] = (float)k;
    OK(cuArrayCreate_v2(&array, &shape)), OK(cuArrayGetDescriptor_v2(&found, array));
    HOLDS(!memcmp(&shape, &found, sizeof shape));
    places[0].kind = 1, places[0].host = host, places[0].pitch = 32, places[1].kind = 3, places[1].array = array;
    memcpy(copy.places, places, sizeof places), copy.width = 32, copy.height = 4;
    OK(cuMemcpy2D_v2(&copy)), OK(cuMemcpyAtoH_v2(back, array, 0, sizeof back));
    HOLDS(!memcmp(host, back, sizeof host));
}

// Thread blocks in pairs: each says which of its pair it is
static void clusters(void) {
    struct { unsigned grid[3], block[3], shared_bytes; Handle stream; void *attributes; unsigned count; } how = {
        {4, 1, 1}, {1, 1, 1}, 0, NULL, NULL, 1};
    struct { int id, pad; unsigned size[3]; char rest[52]; } attribute = {4, 0, {2, 1, 1}, ""};
    Handle own, rank;
    Address out;
    unsigned found[4];
    OK(cuModuleLoadData(&own, ".version 8.0\n.target sm_90\n.address_size 64\n"
        ".visible .entry rank(.param .u64 p) { .reg .b32 %r<3>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [p];\n"
        " mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;\n"
        " st.global.u32 [%rd3], %r2; ret; }\n"));
    OK(cuModuleGetFunction(&rank, own, "rank")), OK(cuMemAlloc_v2(&out, sizeof found));
    how.attributes = &attribute;
    OK(cuLaunchKernelEx(&how, rank, (void *[]){&out}, NULL)), OK(cuMemcpyDtoH_v2(found, out, sizeof found));
    HOLDS(found[0] == 0 && found[1] == 1 && found[2] == 0 && found[3] == 1);
    attribute.size[0] = 3;  // four blocks are no whole clusters
    FAILS(1, cuLaunchKernelEx(&how, rank, (void *[]){&out}, NULL));
}

static void tensor_maps(void) {
    uint64_t size[] = {64, 32}, strides[] = {128}, at;
    uint32_t box[] = {32, 16}, steps[] = {1, 1};
    char map[128] = "", other[128];
    OK(cuTensorMapEncodeTiled(map, 6, 2, (void *)4096, size, strides, box, steps, 0, 2, 0, 0));
    HOLDS(!memcmp(map, "TMAP", 4));
    memcpy(other, map, sizeof map);
    OK(cuTensorMapReplaceAddress(map, (void *)8192));
    memcpy(&at, map + 16, 8);
    HOLDS(at == 8192 && !memcmp(other + 24, map + 24, 104));
    strides[0] = 100;
    FAILS(1, cuTensorMapEncodeTiled(map, 6, 2, (void *)4096, size, strides, box, steps, 0, 2, 0, 0));
}

static void linked(void) {
    Handle link, whole, calls;
    void *image;
    size_t bytes;
    Address a;
    unsigned value = 21;
    OK(cuLinkCreate_v2(0, NULL, NULL, &link));
    OK(cuLinkAddData_v2(link, 1, caller, sizeof caller, "caller", 0, NULL, NULL));
    OK(cuLinkAddData_v2(link, 1, callee, sizeof callee, "callee", 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &bytes)), OK(cuModuleLoadData(&whole, image)), OK(cuLinkDestroy(link));
    OK(cuModuleGetFunction(&calls, whole, "calls")), OK(cuMemAlloc_v2(&a, 4)), OK(cuMemcpyHtoD_v2(a, &value, 4));
    OK(cuLaunchKernel(calls, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a}, NULL)), OK(cuMemcpyDtoH_v2(&value, a, 4));
    HOLDS(value == 42);
    struct { Handle function; unsigned grid[3], block[3], shared_bytes; void **arguments, **extra; } node = {
        calls, {1, 1, 1}, {1, 1, 1}, 0, (void *[]){&a}, NULL};
    Handle graph, first, second, executable;  // the same kernel twice, in a graph
    OK(cuGraphCreate(&graph, 0)), OK(cuGraphAddKernelNode_v2(&first, graph, NULL, 0, &node));
    OK(cuGraphAddKernelNode_v2(&second, graph, &first, 1, &node));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0)), OK(cuGraphLaunch(executable, NULL));
    OK(cuMemcpyDtoH_v2(&value, a, 4));
    HOLDS(value == 168);
}

static void fault(void) {
    Handle beyond;
    Address a;
    OK(cuModuleGetFunction(&beyond, module, "beyond")), OK(cuMemAlloc_v2(&a, 64));
    OK(cuLaunchKernel(beyond, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a}, NULL));
    FAILS(700, cuCtxSynchronize());
    FAILS(700, cuLaunchKernel(beyond, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a}, NULL));
}

int main(int count, char **arguments) {
    contexts();
    if (count > 2) return cuTensorMapEncodeIm2colWide() == 801 ? 0 : 1;
    modules(arguments[1]), launches(), questions(), arrays(), linked(), clusters(), tensor_maps(), fault();
    printf("PASSED\n");
    return 0;
}
