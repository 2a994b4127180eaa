// A kernel that launches kernels (CUDA's dynamic parallelism): each writes down who it is, in the order of execution.
#include "cuda_abi.h"

static const char *const kernels =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 k, .param .align 4 .b8 g[12],\n"
    " .param .align 4 .b8 b[12], .param .b32 s);\n"
    ".extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);\n"
    ".visible .entry child(.param .u64 p, .param .u32 who);\n"
    // launch(log, who, stream): one block of two threads
    ".func launch(.param .b64 log, .param .b32 who, .param .b64 stream) { .reg .b64 %d<5>; .reg .b32 %r<5>;\n"
    " ld.param.b64 %d1, [log]; ld.param.b32 %r1, [who]; ld.param.b64 %d2, [stream]; mov.u64 %d3, child;\n"
    " { .param .b64 k; .param .align 4 .b8 g[12]; .param .align 4 .b8 b[12]; .param .b32 s; .param .b64 r;\n"
    "  st.param.b64 [k], %d3; st.param.b32 [g], 1; st.param.b32 [g+4], 1; st.param.b32 [g+8], 1;\n"
    "  st.param.b32 [b], 2; st.param.b32 [b+4], 1; st.param.b32 [b+8], 1; st.param.b32 [s], 0;\n"
    "  call (r), __cudaCDP2GetParameterBufferV2, (k, g, b, s); ld.param.b64 %d4, [r]; }\n"
    " st.u64 [%d4], %d1; st.u32 [%d4+8], %r1;\n"
    " { .param .b64 p; .param .b64 s; .param .b32 r; st.param.b64 [p], %d4; st.param.b64 [s], %d2;\n"
    "  call (r), __cudaCDP2LaunchDeviceV2, (p, s); ld.param.b32 %r2, [r]; } ret; }\n"
    ".visible .entry child(.param .u64 p, .param .u32 who) { .reg .b64 %d<5>; .reg .b32 %r<5>; .reg .pred %q;\n"
    " mov.u32 %r3, %tid.x; setp.ne.u32 %q, %r3, 1; @%q exit; ld.param.u64 %d1, [p]; ld.param.u32 %r1, [who];\n"
    " atom.global.add.u32 %r2, [%d1], 1; mul.wide.u32 %d2, %r2, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2+4], %r1;\n"
    " setp.ne.u32 %q, %r1, 1; @%q exit; { .param .b64 a; .param .b32 b; .param .b64 c;\n"
    "  st.param.b64 [a], %d1; st.param.b32 [b], 4; st.param.b64 [c], 0; call launch, (a, b, c); } ret; }\n"
    ".visible .entry parent(.param .u64 p) { .reg .b64 %d<3>; ld.param.u64 %d1, [p];\n"
    " { .param .b64 a; .param .b32 b; .param .b64 c; st.param.b64 [a], %d1;\n"
    "  st.param.b32 [b], 3; st.param.b64 [c], 3; call launch, (a, b, c);\n"  // after all others
    "  st.param.b32 [b], 1; st.param.b64 [c], 0; call launch, (a, b, c);\n"
    "  st.param.b32 [b], 2; st.param.b64 [c], 0; call launch, (a, b, c); } ret; }\n";
static char kernel;

int main(void) {
    void **handle = __cudaRegisterFatBinary(fat_binary(kernels));
    __cudaRegisterFunction(handle, &kernel, "parent", "parent", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    unsigned *log, found[6] = {0}, wanted[6] = {4, 1, 4, 2, 3, 0};
    OK(cudaMalloc((void **)&log, sizeof found));
    for (int round = 0; round < 2; round++) {
        OK(cudaMemset(log, 0, sizeof found));
        OK(cudaLaunchKernel(&kernel, (Dim3){1, 1, 1}, (Dim3){1, 1, 1}, (void *[]){&log}, 0, NULL));
        OK(cudaMemcpy(found, log, sizeof found, 2));
        HOLDS(!memcmp(found, wanted, sizeof found));
    }
    printf("PASSED\n");
    return 0;
}
