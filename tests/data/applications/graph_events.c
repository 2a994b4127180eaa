// Events that a captured graph records each time it is launched, and one that times nothing.
#include "cuda_abi.h"
int cudaEventRecordWithFlags(Event, Stream, unsigned), cudaEventCreateWithFlags(Event *, unsigned);
enum { N = 4096, EXTERNAL = 1, UNTIMED = 2 };

int main(void) {
    float *a, *b, ms[2];
    Stream s;
    Event start, end, untimed;
    Graph graph, executable;
    OK(cudaMalloc((void **)&a, N * 4)), OK(cudaMalloc((void **)&b, N * 4));
    OK(cudaStreamCreate(&s)), OK(cudaEventCreate(&start)), OK(cudaEventCreate(&end));
    OK(cudaStreamBeginCapture(s, 0));
    OK(cudaEventRecordWithFlags(start, s, EXTERNAL));
    OK(launch_add(a, b, N, s));
    OK(cudaEventRecordWithFlags(end, s, EXTERNAL));
    OK(cudaStreamEndCapture(s, &graph)), OK(cudaGraphInstantiate(&executable, graph, 0));
    FAILS(400, cudaEventElapsedTime(ms, start, end));  // not launched yet
    for (int k = 0; k < 2; k++) {
        OK(cudaGraphLaunch(executable, s)), OK(cudaStreamSynchronize(s));
        OK(cudaEventElapsedTime(&ms[k], start, end));
    }
    printf("elapsed %.9f %.9f\n", ms[0], ms[1]);
    OK(cudaEventCreateWithFlags(&untimed, UNTIMED)), OK(cudaEventRecord(untimed, s)), OK(cudaStreamSynchronize(s));
    FAILS(400, cudaEventElapsedTime(ms, start, untimed));
    printf("PASSED\n");
    return 0;
}
