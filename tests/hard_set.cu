// Kernels of the hard set (hard_set.py): what one does is decided by data and by numbers that its code does not show.
// nvcc -arch=sm_75 -ptx hard_set.cu; registers a thread from ptxas -v.

extern "C" {

// Each thread block has its own number of steps and its own kind of work: 0 arithmetic, else loads so far apart.
__global__ void phases(const int *steps, const int *kind, const float *x, float *y, int mask) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int count = steps[blockIdx.x], stride = kind[blockIdx.x];
    float sum = threadIdx.x;
    if (stride == 0) {
        for (int k = 0; k < count; k++) sum = sum * 1.0001f + 0.5f;
    } else {
        int at = i * stride;
        for (int k = 0; k < count; k++) {
            sum += x[at & mask];
            at += stride * 4099;
        }
    }
    y[i] = sum;
}

// As phases, by a fixed number of thread blocks that go through all work.
__global__ void persistent(const int *steps, const int *kind, const float *x, float *y, int mask, int count) {
    for (int item = blockIdx.x; item < count; item += gridDim.x) {
        int i = item * blockDim.x + threadIdx.x;
        int stride = kind[item];
        float sum = threadIdx.x;
        for (int k = 0; k < steps[item]; k++) {
            if (stride == 0) sum = sum * 1.0001f + 0.5f;
            else sum += x[(i * stride + k * stride * 4099) & mask];
        }
        y[i] = sum;
    }
}

__global__ void gather(const int *index, const float *x, float *y, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    int at = index[i];
    for (int k = 0; k < rounds; k++) {
        sum += x[at];
        at = index[at];
    }
    y[i] = sum;
}

// A row a thread.
__global__ void rows(const int *start, const int *column, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = start[i]; k < start[i + 1]; k++) sum += x[column[k]];
    y[i] = 0.15f + 0.85f * sum;
}

// One level of a breadth-first search.
__global__ void frontier(const int *start, const int *column, int *depth, int level, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || depth[i] != level) return;
    for (int k = start[i]; k < start[i + 1]; k++)
        if (depth[column[k]] < 0) depth[column[k]] = level + 1;
}

__global__ void smooth(const float *u, const float *f, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / n, col = i - row * n;
    if (row < 1 || row >= n - 1 || col < 1 || col >= n - 1) return;
    out[i] = u[i] + 0.2f * (f[i] + u[i - 1] + u[i + 1] + u[i - n] + u[i + n] - 4.0f * u[i]);
}

__global__ void coarsen(const float *fine, float *coarse, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / n, col = i - row * n;
    if (row >= n) return;
    const float *at = fine + 4 * row * n + 2 * col;
    coarse[i] = 0.25f * (at[0] + at[1] + at[2 * n] + at[2 * n + 1]);
}

__global__ void refine(const float *coarse, float *fine, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / n, col = i - row * n;
    if (row >= n) return;
    fine[i] += coarse[(row / 2) * (n / 2) + col / 2];
}

// One token against all before it: a head a thread block, a position a thread.
__global__ void attend(const float *q, const float *keys, const float *values, float *out, int length, int width) {
    __shared__ float weight[1024];
    int head = blockIdx.x;
    for (int t = threadIdx.x; t < length; t += blockDim.x) {
        float sum = 0.0f;
        for (int k = 0; k < width; k++) sum += q[head * width + k] * keys[(head * width + k) * 1024 + t];
        weight[t] = sum;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < width; k += blockDim.x) {
        float sum = 0.0f;
        for (int t = 0; t < length; t++) sum += weight[t] * values[(head * 1024 + t) * width + k];
        out[head * width + k] = sum;
    }
}

// A row of the weights a thread.
__global__ void project(const float *w, const float *x, float *y, int rows, int columns) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    float sum = 0.0f;
    for (int k = 0; k < columns; k++) sum += w[k * rows + i] * x[k];
    y[i] = sum;
}

__global__ void strided(const float *x, float *y, int stride, int mask, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < rounds; k++) sum += x[((i + k * 65537) * stride) & mask];
    y[i] = sum;
}

// Thread blocks from `first` on write, the others compute.
__global__ void dirty(const float *x, float *y, int first, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[threadIdx.x];
    for (int k = 0; k < rounds; k++) {
        a = a * 1.01f + 1.0f;
        if (blockIdx.x >= first) y[i + k * gridDim.x * blockDim.x] = a;
    }
    y[i] = a;
}

__global__ void count(const int *keys, int *bins, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < rounds; k++, i += gridDim.x * blockDim.x)
        if (i < n) atomicAdd(&bins[keys[i]], 1);
}

// Iterations until a number leaves the circle; lanes differ.
__global__ void escape(const float *re, const float *im, int *out, int most) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
    float a = 0.0f, b = 0.0f, r = re[i], s = im[i];
    while (k < most && a * a + b * b < 4.0f) {
        float t = a * a - b * b + r;
        b = 2.0f * a * b + s;
        a = t;
        k++;
    }
    out[i] = k;
}

__global__ void bitonic(float *x, int j, int k) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ j;
    if (other <= i) return;
    float a = x[i], b = x[other];
    if ((a > b) == ((i & k) == 0)) {
        x[i] = b;
        x[other] = a;
    }
}

// Elimination of one column below `pivot`: the matrix shrinks.
__global__ void eliminate(float *a, int n, int pivot) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, width = n - pivot - 1;
    int row = pivot + 1 + i / width, col = pivot + 1 + i % width;
    if (row >= n) return;
    a[row * n + col] -= a[row * n + pivot] * a[pivot * n + col] * 0.001f;
}

// Thread blocks of which a decaying share is still alive in a round.
__global__ void relax(const int *last, float *x, int round, int work) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (last[blockIdx.x] < round) return;
    float sum = x[i];
    for (int k = 0; k < work; k++) sum = sum * 0.99f + x[i ^ (k & 31)];
    x[i] = sum;
}

// ---- of the second set ----

__global__ void search(const float *sorted, const float *wanted, int *out, int n, int queries) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= queries) return;
    int low = 0, high = n;
    float key = wanted[i];
    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle] < key) low = middle + 1;
        else high = middle;
    }
    out[i] = low;
}

// Rows of one level of a triangular system, those of others are done.
__global__ void solve(const int *order, const int *start, const int *column, const float *value, float *x, int first,
                      int last) {
    int k = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= last) return;
    int row = order[k];
    float sum = x[row];
    for (int e = start[row]; e < start[row + 1]; e++) sum -= value[e] * x[column[e]];
    x[row] = sum;
}

// Block-sparse times dense: the blocks of a row of blocks, a tile of 16 x 16 each.
__global__ void tiles(const int *start, const int *column, const float *a, const float *b, float *c) {
    __shared__ float mine[256], other[256];
    int row = threadIdx.x / 16, col = threadIdx.x % 16;
    float sum = 0.0f;
    for (int k = start[blockIdx.x]; k < start[blockIdx.x + 1]; k++) {
        mine[threadIdx.x] = a[k * 256 + threadIdx.x];
        other[threadIdx.x] = b[column[k] * 256 + threadIdx.x];
        __syncthreads();
        for (int t = 0; t < 16; t++) sum += mine[row * 16 + t] * other[t * 16 + col];
        __syncthreads();
    }
    c[blockIdx.x * 256 + threadIdx.x] = sum;
}

// Again and again over a part of x, whose size decides what stays in a cache.
__global__ void sweep(const float *x, float *y, int span, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int k = 0; k < rounds; k++) sum += x[(i * 8 + k * 37) % span];
    y[i] = sum;
}

// Where a text differs from its neighbour: lanes stop at different places.
__global__ void match(const unsigned char *text, const int *from, int *out, int most) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
    int a = from[2 * i], b = from[2 * i + 1];
    while (k < most && text[a + k] == text[b + k]) k++;
    out[i] = k;
}

// ---- of the fourth and fifth set ----

// The stride decides conflicts on banks of shared memory, and nothing else.
__global__ void banks(const float *x, float *y, int stride, int rounds) {
    __shared__ float s[2048];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = threadIdx.x; k < 2048; k += blockDim.x) s[k] = x[k];
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < rounds; k++) sum += s[(threadIdx.x * stride + k) & 2047];
    y[i] = sum;
}

// As banks, with a stride a thread block.
__global__ void bank_runs(const float *x, float *y, const int *stride, int rounds) {
    __shared__ float s[2048];
    int i = blockIdx.x * blockDim.x + threadIdx.x, own = stride[blockIdx.x];
    for (int k = threadIdx.x; k < 2048; k += blockDim.x) s[k] = x[k];
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < rounds; k++) sum += s[(threadIdx.x * own + k) & 2047];
    y[i] = sum;
}

// Chains of a length that data say, followed from lane to lane's own start.
__global__ void walk(const int *next, const int *length, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int at = i, count = length[i >> 5];
    for (int k = 0; k < count; k++) at = next[at];
    out[i] = at;
}

// A plain convolution of 5 x 5 on tiles of 16 x 16.
__global__ void convolve(const float *x, const float *w, float *y, int width) {
    __shared__ float tile[20][20];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int bx = blockIdx.x % (width / 16) * 16, by = blockIdx.x / (width / 16) * 16;
    for (int k = threadIdx.x; k < 400; k += 256)
        tile[k / 20][k % 20] = x[(by + k / 20) * (width + 4) + bx + k % 20];
    __syncthreads();
    float sum = 0.0f;
    for (int r = 0; r < 5; r++)
        for (int c = 0; c < 5; c++) sum += w[r * 5 + c] * tile[ty + r][tx + c];
    y[(by + ty) * width + bx + tx] = sum;
}

// As many steps either way: on the special function unit, or not.
__global__ void mix(const int *kind, float *y, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = 1.0f + threadIdx.x;
    if (kind[blockIdx.x])
        for (int k = 0; k < steps; k++) a = __sinf(a) + 1.5f;
    else
        for (int k = 0; k < steps; k++) a = a * 0.9f + 1.5f;
    y[i] = a;
}

// Lines in an order that data say: as many of them, with DRAM's rows open or not.
__global__ void ordered(const int *order, const float *x, float *y, int rounds) {
    float sum = 0.0f;
    for (int k = 0; k < rounds; k++)
        sum += x[order[(blockIdx.x * rounds + k) * (blockDim.x / 32) + threadIdx.x / 32] * 32 + threadIdx.x % 32];
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// One warp of each thread block has more to do, and the others wait for it.
__global__ void skewed(const float *x, float *y, int extra, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[i];
    for (int r = 0; r < rounds; r++) {
        int count = threadIdx.x < 32 ? 8 + extra : 8;
        for (int k = 0; k < count; k++) a = a * 0.99f + 0.5f;
        __syncthreads();
    }
    y[i] = a;
}

// A tile of a product of matrices, 16 x 16, by thread blocks that all take as long.
__global__ void multiply(const float *a, const float *b, float *c, int n, int depth) {
    __shared__ float left[16][17], right[16][17];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16, tiles = n / 16;
    int row = blockIdx.x / tiles * 16 + ty, col = blockIdx.x % tiles * 16 + tx;
    float sum = 0.0f;
    for (int k = 0; k < depth; k += 16) {
        left[ty][tx] = a[row * depth + k + tx];
        right[ty][tx] = b[(k + ty) * n + col];
        __syncthreads();
        for (int t = 0; t < 16; t++) sum += left[ty][t] * right[t][tx];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
}
