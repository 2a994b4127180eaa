// Events that a captured graph records each time it is launched, and one that times nothing; a graph on several
// streams; and threads' own streams.
#include "cuda_abi.h"
#include <pthread.h>
int cudaGraphDestroy(Graph), cudaEventRecordWithFlags(Event, Stream, unsigned), cudaEventCreateWithFlags(Event *, unsigned);
enum { N = 4096, EXTERNAL = 1, UNTIMED = 2 };

static void *launched(void *buffer) {  // on the calling thread's own stream
    OK(launch_add(buffer, buffer, N, (Stream)2));
    return NULL;
}

static Graph graph_of(float *a, float *b, Stream s) {
    Graph graph;
    OK(cudaStreamBeginCapture(s, 0)), OK(launch_add(a, b, N, s)), OK(cudaStreamEndCapture(s, &graph));
    return graph;
}

int main(void) {
    float *a, *b, ms[2];
    Stream s, other;
    Event start, end, untimed;
    Graph graph, executable, plain;
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
    OK(cudaEventRecord(start, s));
    OK(cudaStreamCreateWithFlags(&other, 1)), OK(cudaStreamWaitEvent(other, start, 0));
    OK(cudaGraphInstantiate(&plain, graph_of(a, b, s), 0));
    OK(cudaGraphLaunch(plain, s)), OK(cudaGraphLaunch(plain, other));  // does not run beside itself
    OK(cudaEventRecord(end, other)), OK(cudaDeviceSynchronize()), OK(cudaEventElapsedTime(ms, start, end));
    printf("two launches %.9f\n", ms[0]);
    OK(cudaGraphLaunch(plain, (Stream)1)), OK(cudaGraphLaunch(plain, (Stream)2)), OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(s, 0)), OK(cudaEventRecord(start, s)), OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphDestroy(graph));
    FAILS(907, cudaStreamWaitEvent(other, start, 0));
    OK(cudaEventRecord(start, s)), OK(cudaStreamWaitEvent(other, start, 0)), OK(cudaDeviceSynchronize());
    pthread_t threads[2];
    for (int k = 0; k < 2; k++) pthread_create(&threads[k], NULL, launched, k ? a : b), pthread_join(threads[k], NULL);
    OK(cudaDeviceSynchronize());
    printf("PASSED\n");
    return 0;
}
