// Memory of every kind, symbols, streams, events, graphs, a texture, occupancy: what each should give is known.
#include "cuda_abi.h"
enum { N = 1000 };

// A thread that calls the runtime has the primary context from then on, in both APIs
int cudaSetDevice(int), cuCtxGetDevice(int *), cuCtxGetCurrent(void **), cuCtxPopCurrent_v2(void **);
int cuDevicePrimaryCtxRetain(void **, int);
static void primary_context(void) {
    void *context, *found;
    int device = 5;
    FAILS(201, cuCtxGetDevice(&device)), OK(cudaSetDevice(0));
    OK(cuCtxGetDevice(&device)), OK(cuCtxGetCurrent(&context)), OK(cuDevicePrimaryCtxRetain(&found, 0));
    HOLDS(device == 0 && context == found);
    OK(cuCtxPopCurrent_v2(&found)), FAILS(201, cuCtxGetDevice(&device));
}

static void callback(void *argument) { ++*(int *)argument; }

int main(int count_of_arguments, char **arguments_given) {
    (void)arguments_given;
    float *a, *b, host[N], three = 3, ms;
    unsigned n = 0;
    int value;
    primary_context();
    OK(cudaMalloc((void **)&a, sizeof host));
    OK(cudaMallocManaged((void **)&b, sizeof host, 1));
    for (int i = 0; i < N; i++) host[i] = (float)i, b[i] = 1;  // managed memory is written by the host
    OK(cudaMemcpy(a, host, sizeof host, 1));
    OK(cudaMemcpyToSymbol(&offset, &three, 4, 0, 1));
    Event start, middle, end;
    OK(cudaEventCreate(&start)), OK(cudaEventCreate(&middle)), OK(cudaEventCreate(&end));
    FAILS(400, cudaEventElapsedTime(&ms, start, end));
    HOLDS(cudaGetLastError() == 400 && cudaGetLastError() == 0);
    OK(cudaEventRecord(start, 0));
    OK(launch_add(a, b, N, 0));
    OK(cudaEventRecord(end, 0));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < N; i++) HOLDS(b[i] == (float)i + 4);
    OK(cudaEventElapsedTime(&ms, start, end));
    HOLDS(ms >= 0);  // 0 where the launch was left out of what is timed
    printf("elapsed %.9f\n", ms);
    OK(cudaMemcpyFromSymbol(&n, &launches, 4, 0, 2));
    HOLDS(n == 1);

    // errors: what is refused before anything runs
    FAILS(9, cudaLaunchKernel(&add, (Dim3){1, 1, 1}, (Dim3){2048, 1, 1}, (void *[]){&a, &b, &n}, 0, 0));
    FAILS(98, cudaLaunchKernel(&value, (Dim3){1, 1, 1}, (Dim3){1, 1, 1}, NULL, 0, 0));
    FAILS(1, cudaLaunchKernel(&count, (Dim3){1, 1, 1}, (Dim3){32, 1, 1}, NULL, 49153, 0));  // without having asked
    FAILS(1, cudaFuncSetAttribute(&count, 8, 102400)), OK(cudaFuncSetAttribute(&count, 8, 65536));
    FAILS(1, cudaLaunchKernel(&count, (Dim3){1, 1, 1}, (Dim3){32, 1, 1}, NULL, 65537, 0));
    FAILS(1, cudaFree((void *)&a));
    HOLDS(cudaPeekAtLastError() == 1 && cudaGetLastError() == 1 && cudaGetLastError() == 0);
    FAILS(720, cudaLaunchCooperativeKernel(&count, (Dim3){1 << 20, 1, 1}, (Dim3){128, 1, 1}, NULL, 0, 0));
    FAILS(2, cudaMalloc((void **)&value, (size_t)1 << 40));
    cudaGetLastError();

    // managed variable, two streams, an event between them
    Stream first, second;
    OK(cudaStreamCreate(&first)), OK(cudaStreamCreateWithFlags(&second, 1));
    OK(cudaLaunchKernel(&count, (Dim3){4, 1, 1}, (Dim3){32, 1, 1}, NULL, 0, first));
    OK(cudaEventRecord(middle, first));
    OK(cudaStreamWaitEvent(second, middle, 0));
    OK(cudaEventRecord(end, second));
    OK(cudaStreamSynchronize(second));
    HOLDS(*shared_count == 128);
    OK(cudaEventElapsedTime(&ms, middle, end));
    HOLDS(ms == 0);

    // a graph, captured and launched twice; one made by hand
    Graph graph, executable;
    int called = 0;
    OK(cudaMemset(b, 0, sizeof host));
    OK(cudaStreamBeginCapture(first, 0));
    OK(cudaMemsetAsync(b, 0, sizeof host, first));
    OK(launch_add(a, b, N, first)), OK(launch_add(a, b, N, first));
    OK(cudaLaunchHostFunc(first, callback, &called));
    OK(cudaStreamEndCapture(first, &graph));
    HOLDS(b[5] == 0 && called == 0);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, first)), OK(cudaGraphLaunch(executable, first));
    HOLDS(b[5] == 16 && called == 2);
    OK(cudaGraphCreate(&graph, 0));
    void *node, *following;
    unsigned all = N;
    KernelNode parameters = {&add, {8, 1, 1}, {128, 1, 1}, 0, (void *[]){&a, &b, &all}, NULL};
    OK(cudaGraphAddKernelNode(&node, graph, NULL, 0, &parameters));
    OK(cudaGraphAddKernelNode(&following, graph, &node, 1, &parameters));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, 0));
    HOLDS(b[5] == 32);

    // pitched memory and a texture over an array
    float small[3][5], *pitched, *out;
    size_t pitch;
    for (int i = 0; i < 15; i++) small[i / 5][i % 5] = (float)i * 2;
    OK(cudaMallocPitch((void **)&pitched, &pitch, 20, 3));
    HOLDS(pitch >= 20 && pitch % 32 == 0);
    OK(cudaMemcpy2D(pitched, pitch, small, 20, 20, 3, 1));
    HOLDS(pitched[pitch / 4 * 2 + 1] == 22);
    OK(cudaMallocHost((void **)&out, 60));
    void *array;
    uint64_t texture;
    Format format = {32, 0, 0, 0, 2};
    struct { int type; void *array; char rest[120]; unsigned flags; } resource = {0};
    struct { int address[3], filter, mode, srgb; float border[4]; int normalized, rest[8]; } sampling = {.address = {1, 1, 1}};
    OK(cudaMallocArray(&array, &format, 5, 3, 0));
    OK(cudaMemcpy2DToArray(array, 0, 0, small, 20, 20, 3, 1));
    resource.array = array;
    OK(cudaCreateTextureObject(&texture, &resource, &sampling, NULL));
    OK(cudaLaunchKernel(&look, (Dim3){1, 1, 1}, (Dim3){5, 3, 1}, (void *[]){&texture, &out}, 0, 0));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 15; i++) HOLDS(out[i] == (float)i * 2);

    // blocks that wait for each other, twice
    unsigned *met, blocks = 40;
    OK(cudaMallocManaged((void **)&met, 4 * (blocks + 1), 1));
    for (int turn = 0; turn < 2; turn++) {
        OK(cudaMemset(met, 0, 4 * (blocks + 1)));
        void *values[] = {&met, &blocks};
        OK(cudaLaunchCooperativeKernel(&together, (Dim3){blocks, 1, 1}, (Dim3){1, 1, 1}, values, 0, 0));
        OK(cudaDeviceSynchronize());
        for (unsigned i = 0; i <= blocks; i++) HOLDS(met[i] == blocks);
    }

    // the device
    char properties[1024];
    OK(cudaGetDeviceProperties(properties, 0));
    OK(cudaDeviceGetAttribute(&value, 16, 0));
    printf("device %s, %d SMs\n", properties, value);
    size_t left[2];
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&left[0], &add, 1, 128));
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&left[1], &add, 3, 128));
    HOLDS(left[0] == 99 << 10 && left[1] == (100 << 10) / 3 / 128 * 128);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&value, &add, 128, 0));
    HOLDS(value > 0 && value <= 32);
    OK(cudaFree(a)), OK(cudaFree(b)), OK(cudaFreeHost(out));
    printf("PASSED with %d arguments\n", count_of_arguments - 1);
    return 7;
}
