// A matrix product with few rows of x, bound by reading the weights once: weights of 4 or 8 bits in tiles (sm_80 on).
//
// One block per multiprocessor. A block takes the tiles of PASS groups of 8 outputs at a time (a pass), beside those of
// its neighbours. Its warps take turns at the slices of TILE_INPUTS inputs. The tiles of a pass and slice are one piece
// of memory, a stage of the warp's ring; STAGES of them are in flight, the first before the kernels ahead have
// finished: weights are constant. x is kept in registers while a slice lasts, or for good where every warp has one
// slice.
//
// tile_products.cuh multiplies, and pass_end.cuh writes the outputs.
//
// Macros: those of outputs.cuh, tile.cuh and tile_ring.cuh; STAGES; SHARED_BYTES (of a block).
#include "common/launch.cuh"
#include "linear_decode/pass_end.cuh"
#include "linear_decode/tile_products.cuh"
#include "linear_decode/tile_ring.cuh"

namespace {

using Ring = TileRing<STAGES, GROUPS * TILE_BYTES>;

struct Shared {
    Ring rings[WARPS];
    PassEnd pass_end;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the planner knows the size");

// A warp's next copy.
struct Stream {
    int slices, pass, slice;

    __device__ __forceinline__ Stream(const LinearDecode& params, const Span& span) {
        slices = (params.inputs + TILE_INPUTS - 1) / TILE_INPUTS;
        slice = threadIdx.x / 32;
        pass = slice < slices ? 0 : span.passes();
    }

    __device__ __forceinline__ void copy(const LinearDecode& params, const Span& span, Ring& ring, int stage) {
        if (pass >= span.passes()) {
            ring.fill_nothing();
            return;
        }
        const int64_t tile = int64_t(slice) * ((params.outputs + 7) / 8) + span.group(pass);
        const unsigned char* from[MATRICES];
        from[0] = static_cast<const unsigned char*>(params.weight) + tile * TILE_BYTES;
        if (GATED) from[MATRICES - 1] = static_cast<const unsigned char*>(params.up_weight) + tile * TILE_BYTES;
        ring.fill(stage, from, span.groups(pass) * TILE_BYTES, PASS * TILE_BYTES);
        slice += WARPS;
        if (slice < slices) return;
        slice = threadIdx.x / 32;
        // The next kernel's stream starts when nothing is left for this one to ask for.
        if (++pass == span.passes()) let_later_kernels_start();
    }
};

// Where the tile of group q of a pass is in its stage.
__device__ __forceinline__ int tile_place(int q) { return (q % MATRICES * PASS + q / MATRICES) * TILE_BYTES; }

// Puts a warp's sums of a pass where others can read them.
__device__ __forceinline__ void store_sums(Products& shared, const float (&sums)[GROUPS / 2][ROW_BLOCKS][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int q = 0; q < GROUPS; q++) {
#pragma unroll
        for (int row = 0; row < 2 * ROW_BLOCKS; row++)
            shared[warp][q][row / 2 * 8 + lane % 4 * 2 + row % 2][lane / 4] = sums[q / 2][row / 2][q % 2 * 2 + row % 2];
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) linear_decode(const __grid_constant__ LinearDecode params) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
    const int warp = threadIdx.x / 32;
    Ring& ring = shared.rings[warp];
    ring.init();
    shared.pass_end.init();
    const Span span(params.outputs);
    Stream stream(params, span);
    for (int stage = 0; stage < STAGES; stage++) stream.copy(params, span, ring, stage);
    __syncthreads();  // the barriers of the products are there
    wait_for_earlier_kernels();

    Slice x;
    Ring::Place place = {0, 0, 0};
    for (int pass = 0; pass < span.passes(); pass++) {
        const int tiles = MATRICES * span.groups(pass);
        float sums[GROUPS / 2][ROW_BLOCKS][4] = {}, squares[ROW_BLOCKS] = {};
        if (threadIdx.x < MATRICES)  // what the writers will read
            prefetch_to_l2((threadIdx.x ? params.up_factors : params.factors) + 8 * span.group(pass));
        for (int slice = warp; slice < stream.slices; slice += WARPS) {
            if (pass == 0 || stream.slices > WARPS) x.load(params, slice, squares);
            ring.wait(place);
            const unsigned char* stage = ring.stages[place.stage];
#pragma unroll
            for (int q = 0; q < GROUPS; q += 2) {
                if (q >= tiles) break;
                // What is read of a tile that is not there is never written.
                x.multiply_tiles(sums[q / 2], stage + tile_place(q), stage + tile_place(q + 1));
            }
            ring.release(place);
            stream.copy(params, span, ring, place.stage);
            Ring::advance(place);
        }
        store_sums(shared.pass_end.buffer(pass), sums);
        if (NORM && pass == 0) store_squares(shared.pass_end.squares, squares);
        shared.pass_end.finish(params, span, pass);
    }
}
