// Programmatic dependent launch: a kernel may start while the kernel before it in the stream still runs.
#pragma once

// Returns once every earlier kernel of the stream has finished and its writes are visible. Every thread calls it before
// it reads or writes memory that earlier kernels touch, also in a kernel that is launched in the ordinary way, where
// it returns at once.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start once every block has come here or ended. It still waits for this one, so
// that the call may stand first in a kernel: what starts early fills only what this kernel leaves free.
__device__ __forceinline__ void let_later_kernels_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks for the line at `address` to be brought into the L2. Allowed before wait_for_earlier_kernels(), also where an
// earlier kernel writes that line: the L2 is where its writes arrive.
__device__ __forceinline__ void prefetch_to_l2(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// The same for BYTES from `address` on, by the first threads of the block: a prefetch brings one sector.
template <int BYTES>
__device__ __forceinline__ void prefetch_run_to_l2(const void* address) {
    constexpr int SECTOR = 32;
    for (int i = threadIdx.x * SECTOR; i < BYTES; i += blockDim.x * SECTOR)
        prefetch_to_l2(static_cast<const char*>(address) + i);
}

// The same for all of `bytes` by one instruction of one thread (sm_90 and up, else nothing); multiples of 16.
__device__ __forceinline__ void prefetch_bulk_to_l2(const void* address, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}
