// Bulk copies from global to shared memory, whose arrival a barrier tells of (sm_90 and up).
#pragma once

#include "common/mbarrier.cuh"

#if __CUDA_ARCH__ >= 900
// Makes what this thread knows to be written in memory known to bulk copies that it starts after.
__device__ __forceinline__ void fence_for_bulk_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// Copies what is read once: it leaves the L2 before anything else does. `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bulk_once(void* shared, const void* global, int bytes, uint64_t* barrier) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
        : "memory");
}
#endif
