// Thread blocks in clusters: as many as a launch's attribute says, and kernels whose grid counts clusters.
#include "cuda_abi.h"
typedef struct { int id, pad; union { Dim3 size; char space[64]; } value; } Attribute;
typedef struct { Dim3 grid, block; size_t shared_bytes; Stream stream; Attribute *attributes; unsigned count; } Configuration;
int cudaLaunchKernelExC(const Configuration *, const void *, void **);

// Each thread block writes its rank in its cluster, how many there are, and how many blocks the grid has
#define BODY(name, directives) \
    ".visible .entry " name "(.param .u64 p) " directives " { .reg .b32 %r<9>; .reg .b64 %rd<4>;\n" \
    " ld.param.u64 %rd1, [p]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 16; add.u64 %rd3, %rd1, %rd2;\n" \
    " mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %cluster_nctarank; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %ntid.x;\n" \
    " st.global.v4.u32 [%rd3], {%r2, %r3, %r4, %r5}; ret; }\n"
static const char *const kernels = ".version 9.0\n.target sm_90\n.address_size 64\n" BODY("asked", "")
    BODY("counted", ".blocksareclusters .reqntid 64, 1, 1 .reqnctapercluster 4, 1, 1");
static char asked, counted;

static void holds(unsigned *out, unsigned blocks, unsigned ranks, unsigned threads) {
    unsigned found[64];
    OK(cudaMemcpy(found, out, blocks * 16, 2)), OK(cudaMemset(out, 0, sizeof found));
    for (unsigned block = 0; block < blocks; block++) {
        const unsigned *f = found + 4 * block;
        HOLDS(f[0] == block % ranks && f[1] == ranks && f[2] == blocks && f[3] == threads);
    }
}

int main(void) {
    void **handle = __cudaRegisterFatBinary(fat_binary(kernels));
    __cudaRegisterFunction(handle, &asked, "asked", "asked", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(handle, &counted, "counted", "counted", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFatBinaryEnd(handle);
    unsigned *out;
    Attribute attribute = {.id = 4, .value.size = {2, 1, 1}};
    Configuration how = {{6, 1, 1}, {32, 1, 1}, 0, NULL, &attribute, 1};
    OK(cudaMalloc((void **)&out, 1024));
    OK(cudaLaunchKernelExC(&how, &asked, (void *[]){&out}));
    holds(out, 6, 2, 32);
    OK(cudaLaunchKernel(&counted, (Dim3){3, 1, 1}, (Dim3){1, 1, 1}, (void *[]){&out}, 0, NULL));
    holds(out, 12, 4, 64);
    FAILS(801, cudaLaunchKernel(&counted, (Dim3){3, 1, 1}, (Dim3){64, 1, 1}, (void *[]){&out}, 0, NULL));
    attribute.value.size.x = how.grid.x = 16;  // more than every GPU with clusters can have
    FAILS(912, cudaLaunchKernelExC(&how, &asked, (void *[]){&out}));
    OK(cudaFuncSetAttribute(&asked, 14, 1));
    OK(cudaLaunchKernelExC(&how, &asked, (void *[]){&out}));
    holds(out, 16, 16, 32);
    attribute.id = 12;  // an event that is recorded when all thread blocks have begun
    FAILS(801, cudaLaunchKernelExC(&how, &asked, (void *[]){&out}));
    printf("PASSED\n");
    return 0;
}
