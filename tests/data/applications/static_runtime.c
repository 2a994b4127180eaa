// Stands for the runtime that nvcc links into programs: it has the names, and none of it may be reached.
#include <stdio.h>
#include <stdlib.h>
__attribute__((section(".nv_fatbin"), used)) static const char fat[] = "here are kernels";
#define CALL(name) int name(void) { printf("FAILED: %s of the program was called\n", #name), exit(1); }
CALL(__cudaRegisterFatBinaryEnd) CALL(__cudaRegisterFunction) CALL(__cudaRegisterVar) CALL(__cudaRegisterManagedVar)
CALL(__cudaRegisterFatBinary) CALL(cudaMalloc) CALL(cudaLaunchKernel) CALL(cudaDeviceSynchronize)
CALL(cudaGetLastError) CALL(cudaGetErrorName) CALL(cudaImportExternalMemory)
CALL(cudaMemcpy) CALL(cudaMemset)
