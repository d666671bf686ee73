// Tensor maps that a kernel makes itself, and copies of boxes of a tensor by the copy engine (sm_90a). Numbers have
// 16 bits.
//
// A map describes tokens in pages: columns of a head, slots of a page, heads, pages. A box is a panel of
// common/wgmma.cuh of 16 slots of one head and page; columns beyond the last one become zeros.
#pragma once

#include "common/mbarrier.cuh"
#include "common/wgmma.cuh"

constexpr int BOX_SLOTS = 16, BOX_BYTES = BOX_SLOTS * ROW_BYTES;

struct alignas(128) TensorMap {
    unsigned words[32];
};

// Strides in bytes: multiples of 16, above zero and below 1 TiB.
struct PagedTensor {
    const void* first;
    int columns, slots, heads;
    int64_t slot_stride, head_stride, page_stride;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define REPLACE "tensormap.replace.tile."
#define CHOOSE(field, number) \
    asm volatile(REPLACE field ".shared::cta.b1024.b32 [%0], " number ";" ::"l"(at) : "memory")
#define SET_SIZE(field, axis, value) \
    asm volatile(REPLACE field ".shared::cta.b1024.b32 [%0], " axis ", %1;" ::"l"(at), "r"(value) : "memory")
#define SET_STRIDE(axis, value) \
    asm volatile(REPLACE "global_stride.shared::cta.b1024.b64 [%0], " axis ", %1;" ::"l"(at), "l"(value) : "memory")

// Writes the map to `map` in global memory; `scratch` in shared memory holds it before. Called by a whole warp.
__device__ __forceinline__ void make_tensor_map(TensorMap* map, TensorMap* scratch, const PagedTensor& tensor) {
    scratch->words[threadIdx.x % 32] = 0;
    __syncwarp();
    const unsigned long long at = shared_address(scratch);
    if (threadIdx.x % 32 == 0) {
        asm volatile(REPLACE "global_address.shared::cta.b1024.b64 [%0], %1;" ::"l"(at), "l"(tensor.first) : "memory");
        CHOOSE("rank", "3");  // of four axes
        SET_SIZE("box_dim", "0", PANEL);
        SET_SIZE("box_dim", "1", BOX_SLOTS);
        SET_SIZE("box_dim", "2", 1);
        SET_SIZE("box_dim", "3", 1);
        SET_SIZE("global_dim", "0", tensor.columns);
        SET_SIZE("global_dim", "1", tensor.slots);
        SET_SIZE("global_dim", "2", tensor.heads);
        SET_SIZE("global_dim", "3", 0x7fffffff);  // every page that is copied exists
        SET_STRIDE("0", tensor.slot_stride);
        SET_STRIDE("1", tensor.head_stride);
        SET_STRIDE("2", tensor.page_stride);
        SET_SIZE("element_stride", "0", 1);
        SET_SIZE("element_stride", "1", 1);
        SET_SIZE("element_stride", "2", 1);
        SET_SIZE("element_stride", "3", 1);
        CHOOSE("elemtype", "1");           // 16 bits
        CHOOSE("interleave_layout", "0");  // none
        CHOOSE("swizzle_mode", "3");       // 128 bytes, a row of the panel
        CHOOSE("fill_mode", "0");          // zeros
    }
    __syncwarp();
    asm volatile(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"(
            map),
        "l"(at)
        : "memory");
}

#undef SET_STRIDE
#undef SET_SIZE
#undef CHOOSE
#undef REPLACE

// What a thread calls before its first copies by a map that another warp of the block has made, after a barrier.
__device__ __forceinline__ void acquire_tensor_map(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// A box to a multiple of BOX_BYTES of a panel in shared memory. `barrier` expects its bytes.
__device__ __forceinline__ void copy_box(void* shared, const TensorMap* map, int column, int slot, int head, int page,
                                         uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2,%3,%4,%5}], [%6];" ::"r"(shared_address(shared)),
        "l"(map), "r"(column), "r"(slot), "r"(head), "r"(page), "r"(shared_address(barrier))
        : "memory");
}

#endif
