// A matrix product with few rows of x, bound by reading the weights once: weights of 4 or 8 bits in tiles (sm_80 on).
//
// One block a multiprocessor. A block takes the tiles of PASS groups of 8 outputs at a time (a pass), beside those of its
// neighbours. Its warps take turns at the slices of TILE_INPUTS inputs. The tiles of a pass and slice are one piece of
// memory, a stage of the warp's ring; STAGES of them are in flight, the first before the kernels ahead have
// finished: weights are constant. x is kept in registers while a slice lasts, or for good where every warp has one slice.
//
// The products run on tensor cores with the weights of two tiles as the operand of 16 rows: they are made in the registers
// that it has to be in. A lane's inputs are those of bulk_copies.cu, and pass_end.cuh writes the outputs.
//
// Macros: those of outputs.cuh, tile.cuh and tile_ring.cuh; STAGES; SHARED_BYTES (of a block).
#include "common/launch.cuh"
#include "common/mma.cuh"
#include "linear_decode/pass_end.cuh"
#include "linear_decode/tile.cuh"
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

// Products with Int4 leave out what many weights share: codes stay raised by 24, which the sums of a group start from, and
// its scale multiplies the sums. With more sums there are not enough registers.
constexpr bool IS_INT4 = Weights::BITS == 4 && Weights::LOWER == 0;
constexpr bool GROUP_SUMS = IS_INT4 && (GROUP == 0 || GROUP >= 64 * ROW_BLOCKS);
constexpr int SUM_CHUNKS = GROUP_SUMS && GROUP ? GROUP / 32 : CHUNKS;
constexpr int SUMS = CHUNKS / SUM_CHUNKS;

template <typename W>
__device__ __forceinline__ uint4 operand_from_codes(const typename W::Words& codes, const unsigned char* tile, int c) {
    if constexpr (GROUP_SUMS) {
        return W::raised_pairs(codes);
    } else {
        return weights_from_codes(codes, tile, c);
    }
}

// sums[16 weights][8 rows] += products of 8 weights of each of two tiles.
__device__ __forceinline__ void multiply_operands(float (&sums)[4], const uint4& first, const uint4& second,
                                                  const uint4& x) {
    using M = Mma<DATA_T>;
    M::multiply(sums, typename M::A{{first.x, second.x, first.y, second.y}}, typename M::B{{x.x, x.y}});
    M::multiply(sums, typename M::A{{first.z, second.z, first.w, second.w}}, typename M::B{{x.z, x.w}});
}

// A lane's inputs of a slice.
struct Slice {
    Inputs x[CHUNKS];
    float offsets[SUMS][ROW_BLOCKS][2];  // the sum of a group's inputs, of the rows of the lane's sums; or -24 times that

    __device__ __forceinline__ void load(const LinearDecode& params, int slice, float (&squares)[ROW_BLOCKS]) {
        load_inputs(x, params, slice * TILE_INPUTS + threadIdx.x % 4 * 8, params.inputs, squares);
        if constexpr (GROUP_SUMS) {
            // 1 where zero points are still to be added to 24.
            const unsigned factor =
                ZERO_POINTS ? twice(from_float<DATA_T>(1.0f)) : Pair<DATA_T>::INT4_OFFSET | 0x80008000u;
            const uint4 factors = make_uint4(factor, factor, factor, factor);
#pragma unroll
            for (int j = 0; j < SUMS; j++) {
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; b++) {
                    float sums[4] = {};
#pragma unroll
                    for (int c = 0; c < SUM_CHUNKS; c++)
                        multiply_operands(sums, factors, factors, x[j * SUM_CHUNKS + c].rows[b]);
                    offsets[j][b][0] = sums[0];
                    offsets[j][b][1] = sums[1];
                }
            }
        }
    }

    // Adds the products with two tiles, whose weights are the operand of 16 rows.
    __device__ __forceinline__ void multiply_tiles(float (&sums)[ROW_BLOCKS][4], const unsigned char* first,
                                                   const unsigned char* second) const {
        TileCodes codes[2];
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            float group[ROW_BLOCKS][4] = {};
            if constexpr (GROUP_SUMS) {
                const float factors[2] = {offset_factor(first, j), offset_factor(second, j)};
#pragma unroll
                for (int b = 0; b < ROW_BLOCKS; b++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) group[b][i] = factors[i / 2] * offsets[j][b][i % 2];
                }
            }
#pragma unroll
            for (int c = j * SUM_CHUNKS; c < (j + 1) * SUM_CHUNKS; c++) {
                if (c % VECTOR == 0) codes[0].load(first, c), codes[1].load(second, c);
                const uint4 a = operand_from_codes<Weights>(codes[0].of(c), first, c);
                const uint4 b = operand_from_codes<Weights>(codes[1].of(c), second, c);
#pragma unroll
                for (int r = 0; r < ROW_BLOCKS; r++) multiply_operands(group[r], a, b, x[c].rows[r]);
            }
            const float scales[2] = {sum_scale(first, j), sum_scale(second, j)};
#pragma unroll
            for (int b = 0; b < ROW_BLOCKS; b++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sums[b][i] = fmaf(group[b][i], scales[i / 2], sums[b][i]);
            }
        }
    }

    // What the sums of group j are multiplied by.
    static __device__ __forceinline__ float sum_scale(const unsigned char* tile, int j) {
        if (!GROUP_SUMS || GROUP == 0) return UNIT;
        return to_float(tile_number(tile, j));
    }

    // What `offsets` of group j are multiplied by.
    static __device__ __forceinline__ float offset_factor(const unsigned char* tile, int j) {
        return ZERO_POINTS ? -24.0f - to_float(tile_number(tile, j, SCALE_BYTES)) : 1.0f;
    }
};

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
