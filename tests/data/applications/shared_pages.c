// Memory of the program's own that kernels reach, and memory that a captured graph allocates and frees, launched twice.
#include "cuda_abi.h"
enum { N = 3000 };

int main(void) {
    float *own = malloc(4 * N + 400), *x = own + 50, *a, *b, *seen, host[N];
    for (int i = 0; i < N + 100; i++) own[i] = (float)i;
    OK(cudaHostRegister(x, 4 * N, 2));
    FAILS(712, cudaHostRegister(x, 4 * N, 2));
    OK(cudaHostGetDevicePointer((void **)&seen, x, 0));
    HOLDS(x[1] == 51 && own[0] == 0 && own[N + 99] == N + 99 && seen != x);
    x[2] = 1000;
    OK(cudaMalloc((void **)&a, 4 * N)), OK(cudaMemset(a, 0, 4 * N));
    OK(launch_add(a, seen, N, 0));
    HOLDS(x[0] == 50 && x[2] == 1000);
    OK(launch_add(seen, a, N, 0));
    OK(launch_add(a, seen, N, 0));
    HOLDS(x[0] == 100 && x[2] == 2000 && own[49] == 49);
    OK(cudaHostUnregister(x));
    FAILS(713, cudaHostUnregister(x));
    HOLDS(x[0] == 100 && own[N + 99] == N + 99);
    free(own);

    Stream stream;
    Graph graph, executable;
    OK(cudaStreamCreate(&stream)), OK(cudaStreamBeginCapture(stream, 0));
    OK(cudaMallocAsync((void **)&b, 4 * N, stream)), OK(cudaMemsetAsync(b, 0, 4 * N, stream));
    OK(launch_add(a, b, N, stream));
    OK(cudaMemcpyAsync(host, b, 4 * N, 2, stream)), OK(cudaFreeAsync(b, stream));
    OK(cudaStreamEndCapture(stream, &graph)), OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int turn = 0; turn < 2; turn++) {
        host[7] = 0;
        OK(cudaGraphLaunch(executable, stream));
        HOLDS(host[7] == 57);
    }

    // what a graph leaves allocated the program frees, before it launches the graph again
    OK(cudaStreamBeginCapture(stream, 0)), OK(cudaMallocAsync((void **)&b, 4 * N, stream));
    OK(cudaMemsetAsync(b, 0, 4 * N, stream)), OK(launch_add(a, b, N, stream));
    OK(cudaStreamEndCapture(stream, &graph)), OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int turn = 0; turn < 2; turn++) {
        OK(cudaGraphLaunch(executable, stream)), OK(cudaMemcpy(host, b, 4 * N, 2));
        HOLDS(host[7] == 57);
        OK(cudaFreeAsync(b, stream));
    }
    printf("PASSED\n");
    return 0;
}
