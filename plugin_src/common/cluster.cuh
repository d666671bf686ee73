// Thread block clusters (sm_90 and up). For older architectures, code with clusters is compiled but never launched.
#pragma once

#include "common/async_copy.cuh"

// A barrier of all threads of the cluster in two halves: what was written before arriving is visible after waiting.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The number of this block in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

// The address in the shared memory of the cluster's block `rank` that corresponds to `pointer` in this block's.
__device__ __forceinline__ unsigned cluster_address(const void* pointer, int rank) {
    unsigned address = shared_address(pointer);
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
    return address;
}

__device__ __forceinline__ void store_cluster(unsigned address, float4 value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(value.x), "f"(value.y),
                 "f"(value.z), "f"(value.w)
                 : "memory");
#endif
}
__device__ __forceinline__ void store_cluster(unsigned address, float2 value) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(value.x), "f"(value.y) : "memory");
#endif
}
