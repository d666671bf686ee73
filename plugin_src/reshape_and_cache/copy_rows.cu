// Copies the keys and values of new tokens to their slots of a paged pool. ACCESS bytes move at once.
#include "common/access.cuh"
#include "common/launch.cuh"
#include "reshape_and_cache/params.cuh"

using Word = typename AccessWord<ACCESS>::type;

// Grid: (accesses of a token's heads over THREADS, tokens, keys and values).
extern "C" __global__ void __launch_bounds__(THREADS)
    reshape_and_cache(const __grid_constant__ ReshapeAndCache p) {
    const int index = blockIdx.x * THREADS + threadIdx.x, head = index / p.runs, run = index % p.runs;
    const bool values = blockIdx.z != 0;
    constexpr int ELEMENTS = ACCESS / ITEM;
    using Item = typename AccessWord<ITEM>::type;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    if (head >= p.heads) return;
    for (int token = blockIdx.y; token < p.tokens; token += gridDim.y) {
        const int slot = p.slot_mapping[token];
        if (slot < 0) continue;
        const long long from =
            values ? token * p.value_token + head * p.value_head : token * p.key_token + head * p.key_head;
        const long long to = values * p.pool_values + slot / p.block_size * p.pool_block +
                             slot % p.block_size * p.pool_slot + head * p.pool_head;
        const Item* source = static_cast<const Item*>(values ? p.value : p.key) + from + run * ELEMENTS;
        *reinterpret_cast<Word*>(static_cast<Item*>(p.kv_pool) + to + run * ELEMENTS) =
            *reinterpret_cast<const Word*>(source);
    }
}
