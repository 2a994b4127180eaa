// Programs whose outcome depends on the order of thread blocks (order_programs.py).
// nvcc -arch=sm_75 -ptx order_programs.cu; registers a thread from ptxas -v.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ float work(float x, int steps) {
    for (int k = 0; k < steps; k++) x = x * 1.0001f + 0.5f;
    return x;
}

extern "C" {

// A work queue: blocks take items of uneven length until none is left.
__global__ void queue(u32 *counter, u32 *owner, const int *steps, float *y, int items) {
    __shared__ u32 mine;
    while (true) {
        if (threadIdx.x == 0) mine = atomicAdd(counter, 1u);
        __syncthreads();
        u32 item = mine;
        __syncthreads();
        if (item >= items) return;
        y[item * blockDim.x + threadIdx.x] = work(threadIdx.x, steps[item]);
        if (threadIdx.x == 0) owner[item] = blockIdx.x;
    }
}

// Each block has a queue of its own, and takes from its neighbours' when that is empty.
__global__ void steal(u32 *heads, u32 *owner, const int *steps, float *y, int each) {
    __shared__ u32 mine;
    u32 victim = blockIdx.x;
    for (u32 tried = 0; tried < gridDim.x;) {
        if (threadIdx.x == 0) mine = atomicAdd(&heads[victim], 1u);
        __syncthreads();
        u32 item = mine;
        __syncthreads();
        if (item >= each) {
            tried++;
            victim = victim + 1 == gridDim.x ? 0 : victim + 1;
            continue;
        }
        item += victim * each;
        y[item * blockDim.x + threadIdx.x] = work(threadIdx.x, steps[item]);
        if (threadIdx.x == 0) owner[item] = blockIdx.x;
    }
}

// Stream-K: each block has an equal share of all steps of all tiles; who ends a tile waits for the parts of the others.
__global__ void stream_k(const float *x, volatile float *parts, volatile u32 *flags, float *y, int tiles, int depth) {
    int total = tiles * depth, first = blockIdx.x * total / gridDim.x, stop = (blockIdx.x + 1) * total / gridDim.x;
    while (first < stop) {
        int tile = first / depth, end = min(stop, (tile + 1) * depth);
        float sum = 0.0f;
        for (int k = first; k < end; k++) sum += x[(tile * depth + k % depth) * blockDim.x + threadIdx.x];
        if (end == (tile + 1) * depth) {
            int begin = first;
            for (int other = blockIdx.x; begin > tile * depth;) {
                other--;
                while (flags[other] == 0) {}
                __threadfence();
                sum += parts[other * blockDim.x + threadIdx.x];
                begin = other * total / gridDim.x;
            }
            y[tile * blockDim.x + threadIdx.x] = sum;
        } else {
            parts[blockIdx.x * blockDim.x + threadIdx.x] = sum;
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) flags[blockIdx.x] = 1;
        }
        first = end;
    }
}

// A scan in one pass: a block looks back at what those before it have published (1: its sum, 2: the sum up to it).
__global__ void look_back(u32 *ticket, volatile u32 *state, volatile u32 *sums, volatile u32 *prefixes,
                          const u32 *x, u32 *y) {
    __shared__ u32 turn, before, partial[32];
    if (threadIdx.x == 0) turn = atomicAdd(ticket, 1u);
    __syncthreads();
    int tile = turn, i = tile * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 value = x[i];
    for (int step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += other;
    }
    if (lane == 31) partial[warp] = value;
    __syncthreads();
    for (int w = 0; w < warp; w++) value += partial[w];
    if (threadIdx.x == blockDim.x - 1) {
        u32 sum = value, found = 0;
        if (tile > 0) {
            sums[tile] = sum;
            __threadfence();
            state[tile] = 1;
            for (int back = tile - 1; back >= 0; back--) {
                u32 s;
                while ((s = state[back]) == 0) {}
                __threadfence();
                if (s == 2) { found += prefixes[back]; break; }
                found += sums[back];
            }
        }
        prefixes[tile] = found + sum;
        __threadfence();
        state[tile] = 2;
        before = found;
    }
    __syncthreads();
    y[i] = value + before;
}

// A barrier of all blocks between steps of a stencil.
__global__ void grid_barrier(u32 *arrived, volatile u32 *generation, float *a, float *b, int steps) {
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int step = 0; step < steps; step++) {
        volatile float *from = step % 2 ? b : a;
        float *to = step % 2 ? a : b;
        to[i] = 0.25f * from[(i + n - 1) % n] + 0.5f * from[i] + 0.25f * from[(i + 1) % n];
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 old = *generation;
            if (atomicAdd(arrived, 1u) == gridDim.x - 1) {
                *arrived = 0;
                __threadfence();
                *generation = old + 1;
            } else {
                while (*generation == old) {}
            }
            __threadfence();
        }
        __syncthreads();
    }
}

// A lock whose tickets are served in turn, around a sum that is not atomic.
__global__ void ticket_lock(u32 *next, volatile u32 *serving, volatile u32 *sum, u32 *order, int rounds) {
    if (threadIdx.x != 0) return;
    for (int k = 0; k < rounds; k++) {
        u32 mine = atomicAdd(next, 1u);
        while (*serving != mine) {}
        __threadfence();
        u32 now = *sum;
        order[now] = blockIdx.x;
        *sum = now + 1;
        __threadfence();
        *serving = mine + 1;
    }
}

// A chain of flags: block k goes on when block k - 1 has said so; with `reversed`, when block k + 1 has.
__global__ void spin_flag(volatile u32 *flags, volatile u32 *values, int reversed) {
    int from = reversed ? (int)blockIdx.x + 1 : (int)blockIdx.x - 1;
    if (threadIdx.x == 0) {
        u32 value = 1;
        if (from >= 0 && from < gridDim.x) {
            while (flags[from] == 0) __nanosleep(20);
            __threadfence();
            value = values[from] * 3 + 1;
        }
        values[blockIdx.x] = value;
        __threadfence();
        flags[blockIdx.x] = 1;
    }
}

// Breadth-first search over one growing frontier, without levels: nodes are taken while others are found.
__global__ void frontier(const int *start, const int *edges, u32 *visited, volatile u32 *queue, u32 *tail,
                         u32 *head, u32 *left, u32 *owner, int nodes) {
    int lane = threadIdx.x;
    while (true) {
        u32 place = 0, node = 0;
        if (lane == 0) place = atomicAdd(head, 1u);
        place = __shfl_sync(~0u, place, 0);
        if (place >= nodes) return;
        if (lane == 0) {
            while ((node = queue[place]) == 0) if (*(volatile u32 *)left == 0) break;
        }
        node = __shfl_sync(~0u, node, 0);
        if (node == 0) return;
        node--;
        if (lane == 0) owner[node] = blockIdx.x + 1;
        u32 found = 0;
        for (int e = start[node] + lane; e < start[node + 1]; e += 32) {
            if (atomicExch(&visited[edges[e]], 1u) == 0) {
                queue[atomicAdd(tail, 1u)] = edges[e] + 1;
                found++;
            }
        }
        for (int step = 16; step; step /= 2) found += __shfl_xor_sync(~0u, found, step);
        if (lane == 0) atomicAdd(left, found - 1u);
    }
}

// Keys into an open hash table by compare-and-swap.
__global__ void hash_insert(u32 *table, u32 *values, const u32 *keys, int n, u32 mask) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 key = keys[i], at = (key * 2654435761u) & mask;
        while (true) {
            u32 found = atomicCAS(&table[at], 0u, key);
            if (found == 0 || found == key) break;
            at = (at + 1) & mask;
        }
        atomicAdd(&values[at], 1u);
    }
}

// A histogram of doubles, whose additions are loops of compare-and-swap.
__global__ void histogram(u64 *bins, const u32 *keys, int n, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u64 *bin = &bins[keys[i] % count], old = *bin, assumed;
        do {
            assumed = old;
            old = atomicCAS(bin, assumed, (u64)__double_as_longlong(__longlong_as_double(assumed) + 1.0));
        } while (old != assumed);
    }
}

// Even blocks make items, odd ones use them: a ring of `room` places between each pair.
__global__ void producer_consumer(volatile u32 *ring, volatile u32 *made, volatile u32 *used, u32 *sums, int items,
                                  int room) {
    int pair = blockIdx.x / 2;
    volatile u32 *place = ring + pair * room;
    if (threadIdx.x != 0) return;
    if (blockIdx.x % 2 == 0) {
        for (u32 k = 0; k < items; k++) {
            while (k - used[pair] >= room) {}
            place[k % room] = (u32)work(k % 97, k % 5 * 8);
            __threadfence();
            made[pair] = k + 1;
        }
    } else {
        u32 sum = 0;
        for (u32 k = 0; k < items; k++) {
            while (made[pair] <= k) {}
            __threadfence();
            sum += place[k % room];
            used[pair] = k + 1;
        }
        sums[pair] = sum;
    }
}

// Tiles of a triangular product by resident blocks, which take the next tile when they are done with one.
__global__ void tiles(u32 *counter, u32 *owner, const float *a, float *c, int side, int depth) {
    __shared__ u32 mine;
    __shared__ float part[16][17];
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    while (true) {
        if (threadIdx.x == 0) mine = atomicAdd(counter, 1u);
        __syncthreads();
        u32 tile = mine;
        if (tile >= side * side) return;
        int row = tile / side, column = tile % side;
        float sum = 0.0f;
        for (int k = 0; k <= row * depth; k += 16) {
            part[ty][tx] = a[(row * 16 + ty) * 16 * (side * depth / 16 + 1) + k + tx];
            __syncthreads();
            for (int j = 0; j < 16; j++) sum += part[ty][j] * part[j][tx];
            __syncthreads();
        }
        c[(row * 16 + ty) * side * 16 + column * 16 + tx] = sum;
        if (threadIdx.x == 0) owner[tile] = blockIdx.x;
        __syncthreads();
    }
}

}
