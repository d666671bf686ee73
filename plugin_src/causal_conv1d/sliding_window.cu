// Many tokens per row: every thread slides the filter along the tokens of its channels, with the window in registers.
//
// Macros: DATA_T; KERNEL (taps); CHANNELS (a thread's neighbouring channels); STEP (tokens loaded before the first of
// them is used); SILU; THREADS. Grid: x covers the channels, y the tokens in runs of block_tokens, z the rows.
//
// Only the blocks of a row's first tokens touch the state: they read it as the window before token 0, and write the
// last KERNEL columns after their last read of it. No other block reads the state, so it may be updated in place.
#include "causal_conv1d/channels.cuh"
#include "causal_conv1d/params.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"

namespace {

constexpr int C = CHANNELS;
constexpr int K = KERNEL;
constexpr int TAIL_STEP = 4;  // of the tokens that do not fill a step
// For sm_80 the compiler would spill registers of float's window to fit more blocks than these; 0: as many as it finds
// best.
#if __CUDA_ARCH__ < 860
constexpr int LEAST_BLOCKS = sizeof(DATA_T) == 4 ? 8 : 0;
#else
constexpr int LEAST_BLOCKS = 0;
#endif

// The filter and the last K - 1 inputs of C channels, as float.
struct Window {
    float weight[K][C];
    float bias[C];
    float inputs[K - 1][C];

    __device__ __forceinline__ void load_filter(const CausalConv1d& params, int channel) {
        Run<DATA_T, C * K> taps;
        taps.load(static_cast<const DATA_T*>(params.weight) + channel * K);
        Run<DATA_T, C> offsets;
        if (params.bias) offsets.load(static_cast<const DATA_T*>(params.bias) + channel);
#pragma unroll
        for (int c = 0; c < C; c++) {
            bias[c] = params.bias ? to_float(offsets.data[c]) : 0.0f;
#pragma unroll
            for (int j = 0; j < K; j++) weight[j][c] = to_float(taps.data[c * K + j]);
        }
    }

    // The K - 1 tokens before a row's first one: the newest columns of its state.
    __device__ __forceinline__ void load_state(const DATA_T* state) {
        Run<DATA_T, C * K> columns;
        columns.load(state);
#pragma unroll
        for (int j = 0; j < K - 1; j++) {
#pragma unroll
            for (int c = 0; c < C; c++) inputs[j][c] = to_float(columns.data[c * K + 1 + j]);
        }
    }

    // The K - 1 tokens before the one at `x`.
    __device__ __forceinline__ void load_tokens(const DATA_T* x, int64_t stride) {
#pragma unroll
        for (int j = 0; j < K - 1; j++) {
            Run<DATA_T, C> token;
            token.load(x + (j - (K - 1)) * stride);
#pragma unroll
            for (int c = 0; c < C; c++) inputs[j][c] = to_float(token.data[c]);
        }
    }

    // The output at `token`, which then enters the window.
    __device__ __forceinline__ Run<DATA_T, C> slide(const Run<DATA_T, C>& token) {
        Run<DATA_T, C> y;
#pragma unroll
        for (int c = 0; c < C; c++) {
            const float newest = to_float(token.data[c]);
            float sum = bias[c];
#pragma unroll
            for (int j = 0; j < K - 1; j++) sum = fmaf(weight[j][c], inputs[j][c], sum);
            sum = fmaf(weight[K - 1][c], newest, sum);
#pragma unroll
            for (int j = 0; j + 1 < K - 1; j++) inputs[j][c] = inputs[j + 1][c];
            inputs[K - 2][c] = newest;
            y.data[c] = from_float<DATA_T>(SILU ? silu(sum) : sum);
        }
        return y;
    }
};

// Outputs of `count` tokens (N where FULL), the first of which x and y point at. All loads come before their uses.
template <int N, bool FULL>
__device__ __forceinline__ void slide_step(Window& window, const DATA_T* x, int64_t x_stride, DATA_T* y,
                                           int64_t y_stride, int count) {
    Run<DATA_T, C> inputs[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (FULL || i < count) inputs[i].load(x);
        x += x_stride;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (FULL || i < count) window.slide(inputs[i]).store(y);
        y += y_stride;
    }
}

// state_out: the last K columns of the old state followed by the valid tokens.
__device__ __forceinline__ void write_state(const CausalConv1d& params, const RowView& view, const DATA_T* x,
                                            int channel) {
    Run<DATA_T, C * K> columns;
    columns.load(static_cast<const DATA_T*>(params.state) + view.slot * params.state_stride + channel * K);
    for (int token = view.length < K ? 0 : view.length - K; token < view.length; token++) {
        Run<DATA_T, C> newest;
        newest.load(x + token * params.x_token_stride);
        push_column<DATA_T, C, K>(columns, newest);
    }
    columns.store(static_cast<DATA_T*>(params.state_out) + view.slot * params.state_out_stride + channel * K);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
    causal_conv1d_prefill(const __grid_constant__ CausalConv1d params) {
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * C;
    const int begin = blockIdx.y * params.block_tokens;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    if (channel >= params.channels) return;
    const RowView view = row_view(params.rows, blockIdx.z);
    if (view.slot < 0 || (begin > 0 && begin >= view.written)) return;

    const DATA_T* x = static_cast<const DATA_T*>(params.x) + view.row * params.x_row_stride +
                      view.first_token * params.x_token_stride + channel;
    DATA_T* y = static_cast<DATA_T*>(params.y) + view.row * params.y_row_stride +
                view.first_token * params.y_token_stride + channel;
    const int end = min(begin + params.block_tokens, view.length);
    if (begin < end) {
        Window window;
        window.load_filter(params, channel);
        if (begin == 0)
            window.load_state(static_cast<const DATA_T*>(params.state) + view.slot * params.state_stride + channel * K);
        else
            window.load_tokens(x + begin * params.x_token_stride, params.x_token_stride);
        const int64_t x_stride = params.x_token_stride, y_stride = params.y_token_stride;
        int token = begin;
        for (; token + STEP <= end; token += STEP)
            slide_step<STEP, true>(window, x + token * x_stride, x_stride, y + token * y_stride, y_stride, STEP);
        for (; token < end; token += TAIL_STEP)
            slide_step<TAIL_STEP, false>(window, x + token * x_stride, x_stride, y + token * y_stride, y_stride,
                                         end - token);
    }
    if (begin == 0) write_state(params, view, x, channel);

    Run<DATA_T, C> zero;
#pragma unroll
    for (int c = 0; c < C; c++) zero.data[c] = from_float<DATA_T>(0.0f);
    const int written = min(begin + params.block_tokens, view.written);
    for (int token = max(begin, view.length); token < written; token++) zero.store(y + token * params.y_token_stride);
}
