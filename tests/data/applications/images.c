// A tensor map of images (im2col), made by the driver API: a kernel loads the pixels under a tap of a filter, and the host
// goes through them one by one.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
typedef uint64_t Address;
int cuInit(unsigned), cuCtxCreate_v2(Handle *, unsigned, int), cuModuleLoadData(Handle *, const void *);
int cuModuleGetFunction(Handle *, Handle, const char *), cuMemAlloc_v2(Address *, size_t);
int cuMemcpyHtoD_v2(Address, const void *, size_t), cuMemcpyDtoH_v2(void *, Address, size_t);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
int cuTensorMapEncodeIm2col(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const int *, const int *,
                            unsigned, unsigned, const uint32_t *, int, int, int, int);

static void check(int error, int wanted, const char *what) {
    if (error != wanted) printf("FAILED: %s gives %d, not %d\n", what, error, wanted), exit(1);
}
#define OK(call) check(call, 0, #call)
enum { CHANNELS = 8, WIDTH = 7, HEIGHT = 5, IMAGES = 3, PIXELS = 24, TAP_X = 2, TAP_Y = 1, U32 = 2 };

static const char kernels[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
    ".visible .entry k(.param .align 64 .b8 t[128], .param .u64 o) {\n"
    " .shared .align 128 .b8 s[768]; .shared .align 8 .b64 m; .reg .b64 %rd<6>; .reg .b32 %r<12>; .reg .pred %p<3>;\n"
    " .reg .b16 %h<2>; ld.param.u64 %rd1, [o]; mov.u64 %rd2, t; cvta.param.u64 %rd2, %rd2; mov.u32 %r0, %tid.x;\n"
    " mov.u32 %r1, s; mov.u32 %r2, m; setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r2], 1; bar.sync 0;\n"
    " mov.s32 %r3, 0; mov.s32 %r4, 1; mov.s32 %r5, -1; mov.s32 %r6, 0; mov.u16 %h0, 2; mov.u16 %h1, 1;\n"
    " @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 768;\n"
    " @%p0 cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1],\n"
    "  [%rd2, {%r3, %r4, %r5, %r6}], [%r2], {%h0, %h1};\n"
    "W: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra W; mov.u32 %r7, 0;\n"
    "L: shl.b32 %r8, %r0, 2; add.u32 %r8, %r8, %r7; add.u32 %r9, %r8, %r1; ld.shared.u32 %r10, [%r9];\n"
    " cvt.u64.u32 %rd3, %r8; add.u64 %rd3, %rd1, %rd3; st.global.u32 [%rd3], %r10; add.u32 %r7, %r7, 128;\n"
    " setp.lt.u32 %p2, %r7, 768; @%p2 bra L; ret; }\n";

static uint32_t image[IMAGES][HEIGHT][WIDTH][CHANNELS], found[PIXELS][CHANNELS];

// The window is one wider than the image to the left and above, and two and one narrower to the right and below
static void compare(void) {
    int x = 1, y = -1, n = 0;
    for (int pixel = 0; pixel < PIXELS; pixel++) {
        int ax = x + TAP_X, ay = y + TAP_Y, inside = ax >= 0 && ax < WIDTH && ay >= 0 && ay < HEIGHT && n < IMAGES;
        for (int c = 0; c < CHANNELS; c++)
            if (found[pixel][c] != (inside ? image[n][ay][ax][c] : 0)) printf("FAILED: pixel %d\n", pixel), exit(1);
        if (++x <= WIDTH - 1 - 2) continue;
        x = -1;
        if (++y <= HEIGHT - 1 - 1) continue;
        y = -1, n++;
    }
}

int main(void) {
    uint64_t size[] = {CHANNELS, WIDTH, HEIGHT, IMAGES};
    uint64_t strides[] = {sizeof image[0][0][0], sizeof image[0][0], sizeof image[0]};
    uint32_t steps[] = {1, 1, 1, 1};
    int lower[] = {-1, -1}, upper[] = {-2, -1};
    _Alignas(64) char map[128];
    Handle context, module, kernel;
    Address input, output;
    for (unsigned k = 0; k < sizeof image / 4; k++) ((uint32_t *)image)[k] = k + 1;
    OK(cuInit(0)), OK(cuCtxCreate_v2(&context, 0, 0)), OK(cuModuleLoadData(&module, kernels));
    OK(cuModuleGetFunction(&kernel, module, "k")), OK(cuMemAlloc_v2(&input, sizeof image));
    OK(cuMemAlloc_v2(&output, sizeof found)), OK(cuMemcpyHtoD_v2(input, image, sizeof image));
#define ENCODE(pixels, interleave) \
    cuTensorMapEncodeIm2col(map, U32, 4, (void *)input, size, strides, lower, upper, CHANNELS, pixels, steps, interleave, 0, 0, 0)
    OK(ENCODE(PIXELS, 0));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, (void *[]){map, &output}, NULL));
    OK(cuMemcpyDtoH_v2(found, output, sizeof found));
    compare();
    check(ENCODE(5000, 0), 1, "too many pixels"), check(ENCODE(PIXELS, 1), 801, "interleaved"), check(ENCODE(0, 0), 1, "none");
    printf("PASSED\n");
    return 0;
}
