// Layers of transformers, float32, weights as [output][input], activations as [row][feature]. A row is a token of a
// sequence: row = sequence * tokens + token, where a launch works on `tokens` tokens of each sequence from position
// `first` on. The cache of keys (and that of values) is [sequence][head][capacity][head_size].
//
//   embed          table[token] + position embedding (GPT) or table[token] (Llama)
//   layernorm      with mean and bias (GPT-2), a block a row
//   rmsnorm        without (Llama), a block a row
//   gemm           16 x 16 tiles, for many rows: the prompt
//   gemv           one row, a warp an output: a step of one sequence
//   gemv_batch     up to 8 rows, a warp an output: a step of several
//   append_cache   rotary embedding of queries and keys (Llama; halves of a head are the pairs), keys and values to the cache
//   attention      causal, grouped queries, a block a head and row
//   swiglu, gelu, add
//   argmax         a block a row
//
// Nothing that memory holds decides a branch or an address, tokens aside: see dependence.py.
#define TILE 16
#define WARP 32
#define THREADS 128
#define MOST_ROWS 8
#define FULL 0xffffffffu

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1)
        value += __shfl_xor_sync(FULL, value, d);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1)
        value = fmaxf(value, __shfl_xor_sync(FULL, value, d));
    return value;
}

// Every thread of a block of THREADS gets the sum
__device__ __forceinline__ float block_sum(float value, float *part)
{
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (int k = 0; k < THREADS / WARP; ++k)
        value += part[k];
    return value;
}

// grid (rows), block THREADS
extern "C" __global__ void embed(const int *tokens, const float *table, const float *positions, float *out, int width,
                                 int count, int first, int length, int with_positions)
{
    const int sequence = blockIdx.x / count, position = first + blockIdx.x % count;
    const int token = tokens[sequence * length + position];
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const float here = with_positions ? positions[position * width + i] : 0.0f;
        out[blockIdx.x * width + i] = table[token * width + i] + here;
    }
}

// grid (rows), block THREADS
extern "C" __global__ void layernorm(const float *in, const float *gain, const float *bias, float *out, int width,
                                     float eps)
{
    __shared__ float part[THREADS / WARP];
    const float *row = in + blockIdx.x * width;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += THREADS)
        sum += row[i];
    const float mean = block_sum(sum, part) / (float)width;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += THREADS)
        squares += (row[i] - mean) * (row[i] - mean);
    const float scale = rsqrtf(block_sum(squares, part) / (float)width + eps);
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += THREADS)
        out[blockIdx.x * width + i] = (row[i] - mean) * scale * gain[i] + bias[i];
}

// grid (rows), block THREADS
extern "C" __global__ void rmsnorm(const float *in, const float *gain, float *out, int width, float eps)
{
    __shared__ float part[THREADS / WARP];
    const float *row = in + blockIdx.x * width;
    float squares = 0.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += THREADS)
        squares += row[i] * row[i];
    const float scale = rsqrtf(block_sum(squares, part) / (float)width + eps);
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += THREADS)
        out[blockIdx.x * width + i] = row[i] * scale * gain[i];
}

// grid (outputs / 16 rounded up, rows / 16 rounded up), block (16, 16); inputs a multiple of 16
extern "C" __global__ void gemm(const float *in, const float *weight, const float *bias, float *out, int rows,
                                int inputs, int outputs, int with_bias)
{
    __shared__ float s_x[TILE][TILE], s_w[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, output = blockIdx.x * TILE + tx, other = blockIdx.x * TILE + ty;
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < inputs; k += TILE) {
        s_x[ty][tx] = row < rows ? in[row * inputs + k + tx] : 0.0f;
        s_w[ty][tx] = other < outputs ? weight[other * inputs + k + tx] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i)
            sum += s_x[ty][i] * s_w[tx][i];
        __syncthreads();
    }
    if (row < rows && output < outputs)
        out[row * outputs + output] = with_bias ? sum + bias[output] : sum;
}

// grid (outputs / 4 rounded up), block THREADS; inputs a multiple of 4
extern "C" __global__ void gemv(const float4 *in, const float4 *weight, const float *bias, float *out, int inputs,
                                int outputs, int with_bias)
{
    const int lane = threadIdx.x % WARP, quads = inputs / 4;
    const int output = (blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (output >= outputs)
        return;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < quads; i += WARP) {
        const float4 w = weight[output * quads + i], x = in[i];
        sum += w.x * x.x + w.y * x.y + w.z * x.z + w.w * x.w;
    }
    sum = warp_sum(sum);
    if (lane == 0)
        out[output] = with_bias ? sum + bias[output] : sum;
}

// As gemv, for up to MOST_ROWS rows, which are `stride` features apart
extern "C" __global__ void gemv_batch(const float4 *in, const float4 *weight, const float *bias, float *out,
                                      int inputs, int outputs, int with_bias, int rows, int stride)
{
    const int lane = threadIdx.x % WARP, quads = inputs / 4;
    const int output = (blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (output >= outputs)
        return;
    float sum[MOST_ROWS] = {};
#pragma unroll 1
    for (int i = lane; i < quads; i += WARP) {
        const float4 w = weight[output * quads + i];
#pragma unroll
        for (int r = 0; r < MOST_ROWS; ++r)
            if (r < rows) {
                const float4 x = in[r * (stride / 4) + i];
                sum[r] += w.x * x.x + w.y * x.y + w.z * x.z + w.w * x.w;
            }
    }
#pragma unroll
    for (int r = 0; r < MOST_ROWS; ++r) {
        const float whole = warp_sum(sum[r]);
        if (lane == 0 && r < rows)
            out[r * outputs + output] = with_bias ? whole + bias[output] : whole;
    }
}

// grid (heads + 2 * kv_heads, rows), block (head_size / 2); qkv is [row][queries | keys | values], turns is
// [position][cosines | sines] of half a head
extern "C" __global__ void append_cache(float *qkv, const float *turns, float *keys, float *values, int count,
                                        int first, int heads, int kv_heads, int capacity, int rotate)
{
    const int half = blockDim.x, size = 2 * half, k = threadIdx.x;
    const int head = blockIdx.x, sequence = blockIdx.y / count, position = first + blockIdx.y % count;
    float *pair = qkv + (blockIdx.y * (heads + 2 * kv_heads) + head) * size + k;
    float a = pair[0], b = pair[half];
    if (rotate && head < heads + kv_heads) {
        const float c = turns[position * size + k], s = turns[position * size + half + k];
        const float turned = a * c - b * s;
        b = b * c + a * s;
        a = turned;
    }
    if (head < heads) {
        pair[0] = a;
        pair[half] = b;
        return;
    }
    const int kept = (head - heads) % kv_heads;
    const int at = ((sequence * kv_heads + kept) * capacity + position) * size + k;
    if (head < heads + kv_heads) {
        keys[at] = a;
        keys[at + half] = b;
    } else {
        values[at] = a;
        values[at + half] = b;
    }
}

// grid (heads, rows), block THREADS; head_size a multiple of 32 and at most THREADS; 4 bytes of dynamic shared memory a
// position up to the last one
extern "C" __global__ void attention(const float *qkv, const float *keys, const float *values, float *out, int count,
                                     int first, int heads, int kv_heads, int size, int capacity, float scale)
{
    extern __shared__ float score[];
    __shared__ float part[THREADS / WARP], sums[THREADS];
    const int head = blockIdx.x, row = blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int context = first + row % count + 1;
    const float *query = qkv + (row * (heads + 2 * kv_heads) + head) * size;
    const int kept = (row / count * kv_heads + head / (heads / kv_heads)) * capacity * size;

    float highest = -1e30f;
#pragma unroll 1
    for (int t = warp; t < context; t += THREADS / WARP) {
        float sum = 0.0f;
#pragma unroll 1
        for (int i = lane; i < size; i += WARP)
            sum += query[i] * keys[kept + t * size + i];
        sum = warp_sum(sum) * scale;
        highest = fmaxf(highest, sum);
        if (lane == 0)
            score[t] = sum;
    }
    if (lane == 0)
        part[warp] = highest;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < THREADS / WARP; ++k)
        highest = fmaxf(highest, part[k]);

    float sum = 0.0f;
#pragma unroll 1
    for (int t = threadIdx.x; t < context; t += THREADS) {
        score[t] = __expf(score[t] - highest);
        sum += score[t];
    }
    const float whole = block_sum(sum, part);

    const int groups = THREADS / size, feature = threadIdx.x % size;
    float mixed = 0.0f;
#pragma unroll 1
    for (int t = threadIdx.x / size; t < context; t += groups)
        mixed += score[t] * values[kept + t * size + feature];
    sums[threadIdx.x] = mixed;
    __syncthreads();
    if (threadIdx.x >= size)
        return;
    mixed = 0.0f;
#pragma unroll 1
    for (int k = 0; k < groups; ++k)
        mixed += sums[k * size + feature];
    out[(row * heads + head) * size + feature] = mixed / whole;
}

// in is [row][gate | up]
extern "C" __global__ void swiglu(const float *in, float *out, int n, int inner)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const int at = i / inner * 2 * inner + i % inner;
    const float gate = in[at];
    out[i] = gate / (1.0f + __expf(-gate)) * in[at + inner];
}

// The approximation with tanh, as GPT-2's
extern "C" __global__ void gelu(float *data, int n)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const float x = data[i], y = 1.5957691216f * (x + 0.044715f * x * x * x); // 2 sqrt(2 / pi)
    data[i] = x / (1.0f + __expf(-y));
}

extern "C" __global__ void add(float *data, const float *more, int n)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        data[i] += more[i];
}

// grid (rows), block WARP
extern "C" __global__ void argmax(const float *in, int *out, int width)
{
    float best = -1e30f;
    int at = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < width; i += WARP) {
        const float value = in[blockIdx.x * width + i];
        at = value > best ? i : at;
        best = fmaxf(best, value);
    }
    const float highest = warp_max(best);
    int chosen = best == highest ? at : width;
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1)
        chosen = min(chosen, __shfl_xor_sync(FULL, chosen, d));
    if (threadIdx.x == 0)
        out[blockIdx.x] = chosen;
}
