// A kernel that writes out of bounds: every later call gives its error and does nothing, and what abstim lacks is named.
#include "cuda_abi.h"

int main(int n, char **given) {
    (void)given;
    void *p;
    char host[64] = "before";
    OK(cudaMalloc(&p, 64)), OK(cudaMemset(p, 0, 64));
    if (n > 1) return cudaImportExternalMemory(&p, NULL) == 801 ? 0 : 1;
    OK(cudaLaunchKernel(&beyond, (Dim3){1, 1, 1}, (Dim3){1, 1, 1}, (void *[]){&p}, 0, 0));
    FAILS(700, cudaDeviceSynchronize());
    HOLDS(cudaGetLastError() == 700 && cudaGetLastError() == 700);
    FAILS(700, cudaMemcpy(host, p, 64, 2));
    HOLDS(!strcmp(host, "before"));
    printf("PASSED\n");
    return 0;
}
