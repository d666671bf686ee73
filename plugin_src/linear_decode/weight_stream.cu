// A matrix product with few rows of x, which is bound by reading the weights once.
//
// Macros: DATA_T (bfloat16 or half); OUT_T; ROW_BLOCKS (1: up to 8 rows of x, 2: up to 16); GROUPS (of 8 weight rows
// that a block works on at a time); STAGES (depth of the queues); THREADS; NORM; GATED (silu(gate) * up); RELU2.
//
// One block a multiprocessor. A block owns an equal run of weight rows and takes 8 * GROUPS of them at a time (a pass);
// its warps share out the inputs, 32 at a step. Every thread has a queue of its own in shared memory: it copies 16 bytes
// of GROUPS rows a step, STAGES - 1 steps ahead and across passes, and reads back what it copied itself. So the stream
// waits for no other thread, and it starts before the kernels ahead have finished: weights are constant.
//
// The products run on tensor cores with x as the operand of 16 rows. A lane's inputs are the 8 consecutive ones from
// 8 * (lane % 4) on, for x and weights alike: not the hardware's order, but a sum has none. Warps add up through shared
// memory in a fixed order.
#include "common/async_copy.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "linear_decode/fragments.cuh"
#include "linear_decode/params.cuh"

namespace {

#ifndef HINT
#define COPY copy_async_16
#else
#define COPY copy_hinted
__device__ __forceinline__ void copy_hinted(void* shared, const void* global, bool valid) {
    const int bytes = valid ? 16 : 0;
#if HINT == 1
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "l"(policy) : "memory");
#elif HINT == 2
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
#else
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
#endif
}
#endif

constexpr int WARPS = THREADS / 32;
constexpr int STEP = 32 * WARPS;  // inputs of a step of the block
constexpr int ROWS = 8 * ROW_BLOCKS;
constexpr int MATRICES = GATED ? 2 : 1;
constexpr int PASS = GROUPS / MATRICES;  // groups of outputs of a pass; group q of weights is of matrix q % MATRICES
static_assert(GROUPS % MATRICES == 0, "a pass has whole outputs");

struct Shared {
    uint4 queue[STAGES][GROUPS][THREADS];
    float sums[WARPS][GROUPS][ROWS][8];
    float squares[WARPS][ROWS];
};

// The outputs of this block, in groups of 8.
struct Span {
    int first, last;

    __device__ __forceinline__ explicit Span(int outputs) {
        const int64_t groups = (outputs + 7) / 8;
        first = static_cast<int>(groups * blockIdx.x / gridDim.x);
        last = static_cast<int>(groups * (blockIdx.x + 1) / gridDim.x);
    }
    __device__ __forceinline__ int passes() const { return (last - first + PASS - 1) / PASS; }
};

// One thread's copies of weights: its place in the stream.
struct Stream {
    const DATA_T* at;  // its 16 bytes in the pass's first group
    int64_t to_group, to_up, to_pass;
    int row, last_row;
    int input, inputs;
    int step, steps;  // of the pass
    int left;         // steps of all passes

    __device__ __forceinline__ Stream(const LinearDecode& params, const Span& span, int group_row, int first_input) {
        row = 8 * span.first + group_row;
        last_row = min(8 * span.last, params.outputs);
        input = first_input;
        inputs = params.inputs;
        step = 0;
        steps = (inputs + STEP - 1) / STEP;
        left = steps * span.passes();
        const DATA_T* weight = static_cast<const DATA_T*>(params.weight);
        at = weight + row * params.weight_stride + input;
        to_group = 8 * params.weight_stride;
        to_up = GATED ? static_cast<const DATA_T*>(params.up_weight) - weight : 0;
        to_pass = PASS * to_group - static_cast<int64_t>(steps) * STEP;
    }

    __device__ __forceinline__ void copy(uint4 (*queue)[THREADS]) {
        if (left > 0) {
#pragma unroll
            for (int q = 0; q < GROUPS; q++) {
                const bool valid = row + q / MATRICES * 8 < last_row && input + step * STEP < inputs;
                COPY(&queue[q][threadIdx.x], at + q / MATRICES * to_group + q % MATRICES * to_up, valid);
            }
            at += STEP;
            if (++step == steps) {
                step = 0;
                at += to_pass;
                row += 8 * PASS;
            }
            // The next kernel's stream starts when nothing is left for this one to ask for.
            if (--left == 0) let_later_kernels_start();
        }
        commit_copies();
    }
};

// One thread's share of x: 8 inputs of row g, and of row g + 8.
struct Inputs {
    uint4 rows[ROW_BLOCKS];

    // Zeros stand for rows and inputs that do not exist.
    __device__ __forceinline__ void load(const LinearDecode& params, int g, int input) {
        const DATA_T* x = static_cast<const DATA_T*>(params.x) + input;
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; b++) {
            const int row = g + 8 * b;
            rows[b] = make_uint4(0, 0, 0, 0);
            if (row < params.rows && input < params.inputs)
                rows[b] = *reinterpret_cast<const uint4*>(x + row * params.x_stride);
        }
    }

    // Adds the squares to `squares` and multiplies by the norm's weight; its root mean square divides the result.
    __device__ __forceinline__ void scale(const uint4& weight, float (&squares)[ROW_BLOCKS]) {
        const unsigned* weights = reinterpret_cast<const unsigned*>(&weight);
#pragma unroll
        for (int b = 0; b < ROW_BLOCKS; b++) {
            unsigned* words = reinterpret_cast<unsigned*>(&rows[b]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 x = float_pair<DATA_T>(words[i]), w = float_pair<DATA_T>(weights[i]);
                squares[b] = fmaf(x.x, x.x, fmaf(x.y, x.y, squares[b]));
                words[i] = word_from<DATA_T>(x.x * w.x, x.y * w.y);
            }
        }
    }
};

// sums += x * weights^T over the 32 inputs of a warp.
__device__ __forceinline__ void multiply(float (&sums)[4], const Inputs& x, const uint4& weights) {
    const uint4 low = x.rows[0], high = ROW_BLOCKS == 2 ? x.rows[ROW_BLOCKS - 1] : make_uint4(0, 0, 0, 0);
    multiply_16x8x16<DATA_T>(sums, low.x, high.x, low.y, high.y, weights.x, weights.y);
    multiply_16x8x16<DATA_T>(sums, low.z, high.z, low.w, high.w, weights.z, weights.w);
}

// The warps' sums of one output, in order.
__device__ __forceinline__ float total(const Shared& shared, int group, int row, int column) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += shared.sums[warp][group][row][column];
    return sum;
}

// Writes the outputs of a pass whose first group is `group`.
__device__ __forceinline__ void write_outputs(const LinearDecode& params, const Shared& shared, int group, int last) {
    for (int i = threadIdx.x; i < PASS * ROWS * 8; i += THREADS) {
        const int column = i % 8, row = i / 8 % ROWS, q = i / (8 * ROWS);
        const int output = 8 * (group + q) + column;
        if (row >= params.rows || group + q >= last || output >= params.outputs) continue;
        float scale = 1.0f;
        if (NORM) {
            float squares = 0.0f;
#pragma unroll
            for (int warp = 0; warp < WARPS; warp++) squares += shared.squares[warp][row];
            scale = rsqrtf(squares / params.inputs + params.epsilon);
        }
        float y = scale * total(shared, q * MATRICES, row, column);
        if (params.bias) y += to_float(static_cast<const DATA_T*>(params.bias)[output]);
        if (GATED) y = silu(y) * scale * total(shared, q * MATRICES + MATRICES - 1, row, column);
        if (RELU2) y = y > 0.0f ? y * y : 0.0f;
        if (params.residual)
            y += to_float(static_cast<const DATA_T*>(params.residual)[row * params.residual_stride + output]);
        static_cast<OUT_T*>(params.y)[row * params.y_stride + output] = from_float<OUT_T>(y);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_decode(const __grid_constant__ LinearDecode params) {
    extern __shared__ uint4 shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first_input = 32 * warp + 8 * t;
    const Span span(params.outputs);

    Stream stream(params, span, g, first_input);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) stream.copy(shared.queue[stage]);
    wait_for_earlier_kernels();

    const int steps = stream.steps;
    const DATA_T* norm_weight = static_cast<const DATA_T*>(params.norm_weight);
    Inputs next;
    uint4 next_scale = make_uint4(0, 0, 0, 0);
    next.load(params, g, first_input);
    if (NORM && first_input < params.inputs) next_scale = *reinterpret_cast<const uint4*>(norm_weight + first_input);

    int stage = 0;
    for (int pass = 0; pass < span.passes(); pass++) {
        float sums[GROUPS][4] = {};
        float squares[ROW_BLOCKS] = {};
        for (int step = 0; step < steps; step++) {
            Inputs x = next;
            const uint4 scale = next_scale;
            const int next_input = first_input + (step + 1 < steps ? step + 1 : 0) * STEP;
            next.load(params, g, next_input);
            if (NORM && next_input < params.inputs)
                next_scale = *reinterpret_cast<const uint4*>(norm_weight + next_input);
            wait_copies<STAGES - 2>();
            uint4 weights[GROUPS];
#pragma unroll
            for (int q = 0; q < GROUPS; q++) weights[q] = shared.queue[stage][q][threadIdx.x];
            // The stage before this one has been read, and its products are under way: it is free.
            stream.copy(shared.queue[stage == 0 ? STAGES - 1 : stage - 1]);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (NORM) x.scale(scale, squares);
#pragma unroll
            for (int q = 0; q < GROUPS; q++) multiply(sums[q], x, weights[q]);
        }
        __syncthreads();  // the sums of the pass before have been read
#pragma unroll
        for (int q = 0; q < GROUPS; q++) {
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; b++)
                *reinterpret_cast<float2*>(&shared.sums[warp][q][g + 8 * b][2 * t]) =
                    make_float2(sums[q][2 * b], sums[q][2 * b + 1]);
        }
        if (NORM) {
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; b++) {
                squares[b] += __shfl_xor_sync(0xffffffffu, squares[b], 1);
                squares[b] += __shfl_xor_sync(0xffffffffu, squares[b], 2);
                if (t == 0) shared.squares[warp][g + 8 * b] = squares[b];
            }
        }
        __syncthreads();
        write_outputs(params, shared, span.first + pass * PASS, span.last);
    }
}
