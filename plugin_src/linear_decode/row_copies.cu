// A matrix product with few rows of x, bound by reading the weights once: weights by 16-byte copies of lanes (sm_80
// on).
//
// As bulk_copies.cu, with other rings: a warp reads rows in runs of 2 * INPUTS bytes, which come nearer to the memory's
// bandwidth than runs of 64 bytes.
#include "common/async_copy.cuh"
#include "linear_decode/pass_end.cuh"

constexpr int INPUTS = 128;
constexpr int PARTS = 1;
#include "linear_decode/phases.cuh"

namespace {

// A warp's pieces of 8 weight rows, of which STAGES are in flight. Waiting for one and letting its place be filled
// again concern the warp alone.
struct RowRing {
    static constexpr int PITCH = 2 * INPUTS, UNITS = INPUTS / 8, ROWS_AT_ONCE = 32 / UNITS;
    static_assert(32 % UNITS == 0 && UNITS % 8 == 0, "a warp copies whole rows, which cover all banks");
    using Stages = unsigned char[STAGES][8 * PITCH];
    Stages& stages;

    __device__ __forceinline__ explicit RowRing(Stages& stages) : stages(stages) {}

    // Halves of 128 bytes change places in odd rows, so that two rows cover all banks.
    __device__ static __forceinline__ int place(int row, int unit) { return row * PITCH + (unit ^ (row % 2 * 4)) * 16; }

    // Starts a fill of `stage` by `rows` rows, at most 8, from `from` on: `inputs` of each.
    __device__ __forceinline__ void fill(int stage, const DATA_T* from, int64_t row_stride, int rows, int inputs) {
        const int first = threadIdx.x % 32 / UNITS, unit = threadIdx.x % UNITS;
        const DATA_T* at = from + first * row_stride + unit * 8;
#pragma unroll
        for (int row = 0; row < 8; row += ROWS_AT_ONCE) {
            const bool there = row + first < rows && unit * 8 < inputs;
            copy_async_16(&stages[stage][place(row + first, unit)], at, there);
            at += ROWS_AT_ONCE * row_stride;
        }
        commit_copies();
    }
    __device__ __forceinline__ void fill_nothing() { commit_copies(); }
    __device__ __forceinline__ void wait() {
        wait_copies<STAGES - 1>();
        __syncwarp();
    }
    __device__ __forceinline__ void release() { __syncwarp(); }
    // The lane's 8 inputs of row lane / 4 in 32 inputs.
    __device__ __forceinline__ uint4 load(int stage, int chunk) const {
        const int lane = threadIdx.x % 32;
        return *reinterpret_cast<const uint4*>(&stages[stage][place(lane / 4, chunk * 4 + lane % 4)]);
    }
};

struct Shared {
    RowRing::Stages stages[WARPS];
    PassEnd pass_end;
};

// A warp's next copy.
struct Stream : Piece {
    int stage = 0;

    __device__ __forceinline__ void copy(const LinearDecode& params, const Span& span, const Split& split,
                                         RowRing& ring) {
        if (pass >= span.passes()) {
            ring.fill_nothing();
            return;
        }
        const int row = 8 * (span.group(pass) + q / MATRICES);
        const int input = split.first(phase, threadIdx.x / 32);
        const DATA_T* matrix = static_cast<const DATA_T*>(q % MATRICES ? params.up_weight : params.weight);
        ring.fill(stage, matrix + row * params.weight_stride + input, params.weight_stride,
                  min(8, params.outputs - row), max(0, min(split.inputs, params.inputs - input)));
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        advance(span, split);
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_decode(const __grid_constant__ LinearDecode params) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    RowRing ring(shared.stages[threadIdx.x / 32]);
    shared.pass_end.init();
    const Span span(params.outputs);
    const Split split(params.inputs);
    Stream stream = {{0, 0, 0}};
    for (int stage = 0; stage < STAGES; stage++) stream.copy(params, span, split, ring);
    __syncthreads();  // the barriers of the products are there
    wait_for_earlier_kernels();

    Phase phase;
    phase.valid = 0;
    int stage = 0;
    for (int pass = 0; pass < span.passes(); pass++) {
        const int stages = MATRICES * span.groups(pass);
        float sums[GROUPS][4] = {}, squares[ROW_BLOCKS] = {};
        const bool reload = pass == 0 || split.phases > 1;
        for (int p = 0; p < split.phases; p++) {
            if (reload) phase.load(params, split, p, squares);
#pragma unroll
            for (int q = 0; q < GROUPS; q++) {
                if (q >= stages) break;
                ring.wait();
                uint4 weights[CHUNKS];
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    weights[c] = make_uint4(0, 0, 0, 0);
                    if (32 * c < phase.valid) weights[c] = ring.load(stage, c);
                }
                ring.release();
                stream.copy(params, span, split, ring);
                phase.multiply_weights(sums[q], weights, 0);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
            }
        }
        store_products(shared.pass_end.buffer(pass), sums);
        if (NORM && pass == 0) store_squares(shared.pass_end.squares, squares);
        shared.pass_end.finish(params, span, pass);
    }
}
