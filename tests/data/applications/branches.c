// A graph captured from three streams, launched twice; then two streams, the second of which begins when the program has
// waited for an event of the first. Every kernel adds a buffer to another.
#include "cuda_abi.h"
int cudaEventSynchronize(Event), cudaGraphGetNodes(Graph, void **, size_t *);
enum { N = 4096 };

int main(void) {
    float *a, *b[3], found[N];
    Stream s[3];
    Event forked, joined[2], done;
    Graph graph, executable;
    size_t nodes;
    OK(cudaMalloc((void **)&a, sizeof found)), OK(cudaMemset(a, 0, sizeof found));
    float one = 1;
    OK(cudaMemcpyToSymbol(&offset, &one, 4, 0, 1));
    for (int k = 0; k < 3; k++) OK(cudaMalloc((void **)&b[k], sizeof found)), OK(cudaMemset(b[k], 0, sizeof found)), OK(cudaStreamCreate(&s[k]));
    OK(cudaEventCreate(&forked)), OK(cudaEventCreate(&joined[0])), OK(cudaEventCreate(&joined[1])), OK(cudaEventCreate(&done));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(s[0], 0));
    OK(launch_add(a, b[0], N, s[0]));  // 0: before all
    OK(cudaEventRecord(forked, s[0]));
    for (int k = 1; k < 3; k++) OK(cudaStreamWaitEvent(s[k], forked, 0));
    for (int k = 0; k < 3; k++) OK(launch_add(b[0], b[k], N, s[k]));  // 1, 2, 3: beside each other
    for (int k = 1; k < 3; k++) OK(cudaEventRecord(joined[k - 1], s[k])), OK(cudaStreamWaitEvent(s[0], joined[k - 1], 0));
    OK(launch_add(b[1], b[0], N, s[0]));  // 4: after all
    OK(cudaStreamEndCapture(s[0], &graph)), OK(cudaGraphGetNodes(graph, NULL, &nodes));
    HOLDS(nodes == 5);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, s[0])), OK(cudaGraphLaunch(executable, s[0]));
    OK(cudaDeviceSynchronize());
    OK(launch_add(a, b[1], N, s[1])), OK(cudaEventRecord(done, s[1])), OK(cudaEventSynchronize(done));
    OK(launch_add(a, b[2], N, s[2])), OK(launch_add(a, b[1], N, s[1]));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(found, b[0], sizeof found, 2));
    HOLDS(found[0] == found[N - 1] && found[0] > 1);
    printf("PASSED\n");
    return 0;
}
