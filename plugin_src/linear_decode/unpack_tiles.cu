// Writes weights in tiles as an ordinary matrix, for products with many rows of x. A warp takes a tile.
//
// Macros: those of tile.cuh.
#include "linear_decode/tile.cuh"
#include "linear_decode/unpack_params.cuh"

constexpr int WARPS = 8;

extern "C" __global__ void __launch_bounds__(32 * WARPS) unpack_tiles(const __grid_constant__ UnpackTiles params) {
    const int group = blockIdx.x * WARPS + threadIdx.x / 32, groups = (params.outputs + 7) / 8, slice = blockIdx.y;
    const int row = 8 * group + threadIdx.x % 32 / 4, first = slice * TILE_INPUTS + threadIdx.x % 4 * 8;
    if (row >= params.outputs) return;
    const unsigned char* tile =
        static_cast<const unsigned char*>(params.tiles) + (int64_t(slice) * groups + group) * TILE_BYTES;
    const float factor = params.factors[row] * UNIT;
    DATA_T* y = static_cast<DATA_T*>(params.y) + int64_t(row) * params.inputs + first;
    TileCodes codes;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        if (first + 32 * c >= params.inputs) break;
        if (c % VECTOR == 0) codes.load(tile, c);
        const uint4 pairs = weights_from_codes(codes.of(c), tile, c);
        const unsigned words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
        Access<DATA_T, 8> to;
        float numbers[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 two = float_pair(words[i], DATA_T());
            numbers[2 * i] = two.x * factor;
            numbers[2 * i + 1] = two.y * factor;
        }
        to.pack(numbers);
        to.store(y + 32 * c);
    }
}
