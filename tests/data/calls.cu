// nvcc -ptx -arch=sm_75 calls.cu: functions that are not inlined, structures by value, pointers to local memory.
struct Pair {
    int first;
    float second;
    short rest[6];
};

__constant__ int scale[2][2] = {{1, 2}, {3, 4}};
__device__ int bias = 7;
__device__ int *bias_pointer = &bias;

__device__ __noinline__ float weigh(float value, int by) { return value * by + scale[by & 1][1]; }

__device__ __noinline__ Pair advance(Pair pair, int steps)
{
    for (int i = 0; i < steps; i++)
        pair.rest[i % 6] += i;
    pair.first += *bias_pointer;
    pair.second = weigh(pair.second, steps);
    return pair;
}

__device__ __noinline__ void store(int *where, Pair pair)
{
    *where = pair.first + pair.rest[pair.first % 6];
}

extern "C" __global__ void calls(int *out, float *weight, int n, Pair start)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    start.first += i;
    int kept;
    Pair pair = advance(start, i & 7);
    store(&kept, pair);
    out[i] = kept;
    weight[i] = pair.second;
}
