// Layers that the suite has no kernel for, batch 1, NCHW; the rest of a network runs the suite's own kernels.
//
//   conv2d          the suite's implicit GEMM for any square window, stride and padding, and any number of pixels
//   bias_relu       out = max(in + bias[channel], 0), after a convolution of VGG
//   batchnorm       inference-time batch normalisation without ReLU, before a residual sum
//   add_relu        out = max(in + shortcut, 0)
//   maxpool2x2      window 2, stride 2
//   average_pool    mean of a plane, one warp a plane
//   fully_connected_single  out[o] = bias[o] + sum_i weight[o][i] in[i], one warp an output neuron
#define TILE 16

// block (16,16), grid (output pixels / 16 rounded up, output channels / 16 rounded up)
extern "C" __global__ void conv2d(const float *in, const float *weight, float *out, int channels, int height,
                                  int width, int out_channels, int out_height, int out_width, int window,
                                  int stride, int pad)
{
    __shared__ float s_w[TILE][TILE], s_x[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int oc = blockIdx.y * TILE + ty;
    const int pixel = blockIdx.x * TILE + tx;
    const int out_area = out_height * out_width;
    const int h = pixel / out_width * stride - pad, w = pixel % out_width * stride - pad;
    const int taps = window * window, inner = channels * taps;
    const bool column = pixel < out_area, row = oc < out_channels;

    float sum = 0.0f;
#pragma unroll 1
    for (int k0 = 0; k0 < inner; k0 += TILE) {
        const int kw = k0 + tx;
        s_w[ty][tx] = row && kw < inner ? weight[oc * inner + kw] : 0.0f;

        const int kx = k0 + ty;
        const int c = kx / taps, rs = kx % taps;
        const int y = h + rs / window, x = w + rs % window;
        const bool ok = column && kx < inner && y >= 0 && y < height && x >= 0 && x < width;
        s_x[ty][tx] = ok ? in[(c * height + y) * width + x] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i)
            sum += s_w[ty][i] * s_x[i][tx];
        __syncthreads();
    }
    if (row && column)
        out[oc * out_area + pixel] = sum;
}

extern "C" __global__ void bias_relu(float *data, const float *bias, int n, int area)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i] = fmaxf(data[i] + bias[i / area], 0.0f);
}

extern "C" __global__ void batchnorm(const float *in, const float *mean, const float *var, const float *gamma,
                                     const float *beta, float *out, int n, int area, float eps)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const int c = i / area;
    out[i] = (in[i] - mean[c]) * (gamma[c] * rsqrtf(var[c] + eps)) + beta[c];
}

extern "C" __global__ void add_relu(const float *in, const float *shortcut, float *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = fmaxf(in[i] + shortcut[i], 0.0f);
}

extern "C" __global__ void maxpool2x2(const float *in, float *out, int n, int out_w)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const int x = i % out_w, row = i / out_w;
    const float *src = in + 4 * row * out_w + 2 * x;
    out[i] = fmaxf(fmaxf(src[0], src[1]), fmaxf(src[2 * out_w], src[2 * out_w + 1]));
}

extern "C" __global__ void average_pool(const float *in, float *out, int planes, int area)
{
    const int lane = threadIdx.x & 31;
    const int plane = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (plane >= planes)
        return;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < area; i += 32)
        sum += in[plane * area + i];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0)
        out[plane] = sum / (float)area;
}

extern "C" __global__ void fully_connected_single(const float *in, const float *weight, const float *bias, float *out,
                                                  int n_in, int n_out, int relu)
{
    const int lane = threadIdx.x & 31;
    const int o = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (o >= n_out)
        return;
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < n_in; i += 32)
        sum += weight[o * n_in + i] * in[i];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) {
        const float value = sum + bias[o];
        out[o] = relu ? fmaxf(value, 0.0f) : value;
    }
}
