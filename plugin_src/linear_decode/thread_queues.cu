// A matrix product with few rows of x, bound by reading the weights once: weights by 16-byte copies (sm_80 on).
//
// One block per multiprocessor. A block takes 8 * GROUPS weight rows at a time (a pass), next to those of its neighbours;
// its warps share out the inputs, 32 at a step. Every thread has its own queue in shared memory, STAGES deep: it
// copies 16 bytes of GROUPS rows per step, STAGES - 1 steps ahead and across passes, and reads back what it copied
// itself. So the stream waits for no other thread, and it starts before the kernels ahead have finished: weights are
// constant.
//
// The products are as in bulk_copies.cu.
#include "common/async_copy.cuh"
#include "common/launch.cuh"
#include "linear_decode/outputs.cuh"

namespace {

constexpr int STEP = 32 * WARPS;  // inputs of a step of the block

struct Shared {
    uint4 queue[STAGES][GROUPS][THREADS];
    Products products;
    Squares squares;
};

// One thread's copies of weights: its place in the stream.
struct Stream {
    const DATA_T* at;  // its 16 bytes in the pass's first group
    int64_t to_up;
    int row, end_row;  // its row in the first group; the end of the pass's rows
    int pass, step, steps, left;

    __device__ __forceinline__ Stream(const LinearDecode& params, const Span& span, int g, int first_input) {
        to_up = GATED ? static_cast<const DATA_T*>(params.up_weight) - static_cast<const DATA_T*>(params.weight) : 0;
        steps = (params.inputs + STEP - 1) / STEP;
        left = steps * span.passes();
        start_pass(params, span, 0, g, first_input);
    }

    __device__ __forceinline__ void start_pass(const LinearDecode& params, const Span& span, int next, int g,
                                               int first_input) {
        pass = next;
        step = 0;
        row = 8 * span.group(pass) + g;
        end_row = min(8 * (span.group(pass) + span.groups(pass)), params.outputs);
        at = static_cast<const DATA_T*>(params.weight) + row * params.weight_stride + first_input;
    }

    __device__ __forceinline__ void copy(const LinearDecode& params, const Span& span, int g, int first_input,
                                         uint4 (*queue)[THREADS]) {
        if (left > 0) {
            const bool inside = first_input + step * STEP < params.inputs;
#pragma unroll
            for (int q = 0; q < GROUPS; q++)
                copy_async_16(&queue[q][threadIdx.x],
                              at + 8 * (q / MATRICES) * params.weight_stride + q % MATRICES * to_up,
                              inside && row + q / MATRICES * 8 < end_row);
            at += STEP;
            if (++step == steps) start_pass(params, span, pass + 1, g, first_input);
            // The next kernel's stream starts when nothing is left for this one to ask for.
            if (--left == 0) let_later_kernels_start();
        }
        commit_copies();
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_decode(const __grid_constant__ LinearDecode params) {
    extern __shared__ uint4 shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    const int lane = threadIdx.x % 32, g = lane / 4;
    const int first_input = threadIdx.x / 32 * 32 + lane % 4 * 8;
    const Span span(params.outputs);

    Stream stream(params, span, g, first_input);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) stream.copy(params, span, g, first_input, shared.queue[stage]);
    wait_for_earlier_kernels();

    const int steps = stream.steps;
    Inputs next;
    uint4 next_scale = make_uint4(0, 0, 0, 0);
    next.load(params, g, first_input);
    if (NORM) next_scale = load_norm_weight(params, first_input);

    int stage = 0;
    for (int pass = 0; pass < span.passes(); pass++) {
        float sums[GROUPS][4] = {};
        float squares[ROW_BLOCKS] = {};
        for (int step = 0; step < steps; step++) {
            Inputs x = next;
            const uint4 scale = next_scale;
            const int next_input = first_input + (step + 1 < steps ? step + 1 : 0) * STEP;
            next.load(params, g, next_input);
            if (NORM) next_scale = load_norm_weight(params, next_input);
            wait_copies<STAGES - 2>();
            uint4 weights[GROUPS];
#pragma unroll
            for (int q = 0; q < GROUPS; q++) weights[q] = shared.queue[stage][q][threadIdx.x];
            // The stage before this one has been read, and its products are in flight: it is free.
            stream.copy(params, span, g, first_input, shared.queue[stage == 0 ? STAGES - 1 : stage - 1]);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (NORM) x.scale(scale, squares);
#pragma unroll
            for (int q = 0; q < GROUPS; q++) multiply(sums[q], x, weights[q]);
        }
        __syncthreads();  // the sums of the pass before have been read
        store_products(shared.products, sums);
        if (NORM) store_squares(shared.squares, squares);
        __syncthreads();
        write_outputs(params, shared.products, shared.squares, span.group(pass), span.groups(pass), threadIdx.x,
                      THREADS);
    }
}
