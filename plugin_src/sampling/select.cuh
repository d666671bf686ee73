// Radix select of the key at which a running sum passes a target: one block, digit by digit, without sorting.
#pragma once

#include "sampling/weights.cuh"

// Bins of a digit. Sums are in two 32-bit words, added with a carry.
template <int THREADS_>
struct Select {
    static constexpr int DIGIT = 11, BINS = 1 << DIGIT, OWN = BINS / THREADS_, WARPS = THREADS_ / 32;

    unsigned low[BINS];
    unsigned high[BINS];
    uint64_t warps[WARPS];
    uint64_t before;  // the sum of smaller keys
    uint64_t inside;  // the sum of the key itself
    unsigned digit;

    __device__ __forceinline__ void clear() {
        for (int i = threadIdx.x; i < BINS; i += THREADS_) low[i] = high[i] = 0;
        __syncthreads();
    }

    // Called by all lanes of a warp together; `sum` of lanes that are not `active` is ignored.
    __device__ __forceinline__ void add(bool active, unsigned bin, uint64_t sum) {
        const unsigned lanes = __ballot_sync(0xffffffffu, active);
        if (!lanes) return;
        // Lanes with the same bin would otherwise serialise on its atomics.
        const unsigned shared_bin = __shfl_sync(0xffffffffu, bin, __ffs(lanes) - 1);
        if (__all_sync(0xffffffffu, !active || bin == shared_bin)) {
            // Sums are at most 2^40: 32 parts of 21 bits add up within a word.
            const unsigned part = active ? static_cast<unsigned>(sum) & 0xfffffu : 0u;
            const unsigned rest = active ? static_cast<unsigned>(sum >> 20) : 0u;
            sum = __reduce_add_sync(0xffffffffu, part);
            sum += static_cast<uint64_t>(__reduce_add_sync(0xffffffffu, rest)) << 20;
            active = threadIdx.x % 32 == __ffs(lanes) - 1;
        }
        if (!active) return;
        const unsigned added = static_cast<unsigned>(sum), old = atomicAdd(&low[bin], added);
        const unsigned carry = static_cast<unsigned>(sum >> 32) + (old + added < added);
        if (carry) atomicAdd(&high[bin], carry);
    }

    // Sets `digit` to the bin in which the running sum passes `target`, which is below the total, and `before` and
    // `inside` for it. Clears the bins.
    __device__ __forceinline__ void find(uint64_t target) {
        __syncthreads();
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        uint64_t own[OWN], sum = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int bin = threadIdx.x * OWN + i;
            own[i] = static_cast<uint64_t>(high[bin]) << 32 | low[bin];
            low[bin] = high[bin] = 0;
            sum += own[i];
        }
        uint64_t running = sum;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint64_t other = __shfl_up_sync(0xffffffffu, running, distance);
            if (lane >= distance) running += other;
        }
        if (lane == 31) warps[warp] = running;
        __syncthreads();
        uint64_t earlier = lane < warp && lane < WARPS ? warps[lane] : 0;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) earlier += __shfl_xor_sync(0xffffffffu, earlier, distance);
        earlier += running - sum;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            if (earlier <= target && target < earlier + own[i]) {
                digit = threadIdx.x * OWN + i;
                before = earlier;
                inside = own[i];
            }
            earlier += own[i];
        }
        __syncthreads();
    }

    // The smallest key of `bits` bits such that the sum over items with keys up to it passes `target`, which is below
    // the total. `visit(i, key, sum)` sets key and summand of item i and returns whether it counts. Afterwards `before`
    // and `inside` are those of the returned key.
    template <typename Visit>
    __device__ __forceinline__ unsigned key_at(uint64_t target, int bits, int begin, int end, Visit visit) {
        unsigned found = 0;
        uint64_t smaller = 0;
        for (int left = bits; left > 0;) {
            const int width = min(left, DIGIT), shift = left - width;
#if __CUDA_ARCH__ >= 1200
#pragma unroll 1  // else the compiler spills registers to local memory
#endif
            for (int from = begin; from < end; from += THREADS_) {
                const int i = from + threadIdx.x;
                unsigned key = 0;
                uint64_t sum = 0;
                bool active = i < end && visit(i, key, sum);
                // A shift by 32 bits is undefined; there is no earlier digit to compare.
                active = active && (left >= 32 || key >> left == found);
                add(active, key >> shift & ((1u << width) - 1), sum);
            }
            find(target - smaller);
            smaller += before;
            found = found << width | digit;
            left = shift;
            __syncthreads();
        }
        if (threadIdx.x == 0) before = smaller;
        __syncthreads();
        return found;
    }

    // The item at which the running sum over [begin, end), at most 2 * THREADS_ items, passes `target`, which is below
    // the total. `value(i)` is the summand of item i. Sets `before`.
    template <typename Value>
    __device__ __forceinline__ int item_at(uint64_t target, int begin, int end, Value value) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = begin + 2 * threadIdx.x;
        const uint64_t own = i < end ? value(i) : 0, next = i + 1 < end ? value(i + 1) : 0;
        uint64_t running = own + next;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const uint64_t other = __shfl_up_sync(0xffffffffu, running, distance);
            if (lane >= distance) running += other;
        }
        __syncthreads();
        if (lane == 31) warps[warp] = running;
        __syncthreads();
        uint64_t earlier = sum_of_warp(lane < warp && lane < WARPS ? warps[lane] : 0) + running - own - next;
        if (earlier <= target && target < earlier + own) {
            digit = i;
            before = earlier;
        }
        earlier += own;
        if (earlier <= target && target < earlier + next) {
            digit = i + 1;
            before = earlier;
        }
        __syncthreads();
        return digit;
    }

    // The sum of `value` over the block.
    __device__ __forceinline__ uint64_t sum_of(uint64_t value) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
        __syncthreads();
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
        __syncthreads();
        value = threadIdx.x % 32 < WARPS ? warps[threadIdx.x % 32] : 0;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
        return value;
    }
};
