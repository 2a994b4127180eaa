// A kernel that writes out of bounds: every later call gives its error, and what abstim lacks is named.
#include "cuda_abi.h"

int main(int n, char **given) {
    (void)given;
    void *p;
    OK(cudaMalloc(&p, 64));
    if (n > 1) return cudaImportExternalMemory(&p, NULL) == 801 ? 0 : 1;
    FAILS(700, cudaLaunchKernel(&beyond, (Dim3){1, 1, 1}, (Dim3){1, 1, 1}, (void *[]){&p}, 0, 0));
    FAILS(700, cudaDeviceSynchronize());
    HOLDS(cudaGetLastError() == 700 && cudaGetLastError() == 700);
    printf("PASSED\n");
    return 0;
}
