// A program that compiles with NVRTC and asks for machine code, as what comes with CUDA does.
#include <stdio.h>
#include <stdlib.h>
int nvrtcGetCUBINSize(void *, size_t *), nvrtcGetCUBIN(void *, char *);
int cuInit(unsigned), cuCtxCreate_v2(void **, unsigned, int), cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *), cuGetExportTable(const void **, const void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(void) {
    void *context, *module, *kernel;
    const void *table;
    size_t bytes;
    int error = nvrtcGetCUBINSize(NULL, &bytes);
    char *image = malloc(bytes);
    error |= nvrtcGetCUBIN(NULL, image) | cuInit(0) | cuCtxCreate_v2(&context, 0, 0) | cuModuleLoadData(&module, image);
    error |= cuModuleGetFunction(&kernel, module, "made");
    error |= cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    if (error || cuGetExportTable(&table, NULL) != 500) return printf("FAILED: %d\n", error), 1;
    printf("PASSED\n");
    return 0;
}
