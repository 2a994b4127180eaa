// A kernel and a function that it calls, compiled apart (-rdc=true): linked by nvlink, a program hands over machine code,
// and beside it a list of the parts. Each has a variable of its own of the same name. Calls have the names that --default-stream per-thread gives them.
#include "cuda_abi.h"
int cudaMemcpy_ptds(void *, const void *, size_t, int), cudaDeviceSynchronize(void);
int cudaLaunchKernel_ptsz(const void *, Dim3, Dim3, void **, size_t, Stream);

static const char *const caller =
    ".version 8.0\n.target sm_80\n.address_size 64\n.extern .global .align 4 .u32 step;\n"
    ".global .align 4 .u32 own = 1;\n.entry only_declared();\n"
    ".extern .func (.param .b32 r) twice(.param .b32 x);\n"
    ".visible .entry caller(.param .u64 p) { .reg .b64 %rd<2>; .reg .b32 %r<5>; ld.param.u64 %rd1, [p];\n"
    " ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [step]; add.u32 %r3, %r1, %r2;\n"
    " ld.global.u32 %r1, [own]; add.u32 %r3, %r3, %r1;\n"
    " { .param .b32 x; .param .b32 r; st.param.b32 [x], %r3; call.uni (r), twice, (x); ld.param.b32 %r4, [r]; }\n"
    " st.global.u32 [%rd1], %r4; ret; }\n";
static const char *const callee =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .u32 step = 5;\n"
    ".global .align 4 .u32 own = 100;\n"
    ".visible .func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<3>; ld.param.b32 %r1, [x];\n"
    " add.u32 %r2, %r1, %r1; ld.global.u32 %r1, [own]; add.u32 %r2, %r2, %r1; st.param.b32 [r], %r2; ret; }\n";
static char kernel;

int main(void) {
    struct Wrapper { uint32_t magic, version; void *data; void **parts; };
    struct Wrapper *first = fat_binary(caller), *second = fat_binary(callee);
    void *parts[] = {first->data, second->data, NULL};
    struct Wrapper linked = {0x466243B1, 2, "machine code", parts};
    void **handle = __cudaRegisterFatBinary(&linked);
    __cudaRegisterFunction(handle, &kernel, "caller", "caller", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    unsigned *value, found = 3;
    OK(cudaMalloc((void **)&value, 4));
    OK(cudaMemcpy_ptds(value, &found, 4, 1));
    OK(cudaLaunchKernel_ptsz(&kernel, (Dim3){1, 1, 1}, (Dim3){1, 1, 1}, (void *[]){&value}, 0, NULL));
    OK(cudaMemcpy_ptds(&found, value, 4, 2));
    HOLDS(found == 118);
    printf("PASSED\n");
    return 0;
}
