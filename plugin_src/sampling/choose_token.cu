// Chooses the token of each row: applies its filters exactly, to the candidates or, if they are not enough, to all
// tokens, and samples one. Also lists the most likely tokens.
//
// Grid: problems; THREADS threads per block. Macros: THREADS.
#include "common/launch.cuh"
#include "sampling/select.cuh"

namespace {

constexpr int WEIGHT_BITS = 30;  // of the difference from ONE
constexpr int LOADS = 4;         // of a thread at a time
constexpr int ANY = 0x7fffffff;

// A token survives if its score's key is at least `least_key`, its weight is at least `min_weight`, and its weight is
// above `edge`, or equal to `edge` with an id of at most `last_token`.
struct Filters {
    unsigned least_key;
    float edge;
    int last_token;
    float min_weight;

    __device__ __forceinline__ bool keep_score(float score) const {
        return score > minus_infinity() && ordered(score) >= least_key;
    }
    __device__ __forceinline__ bool keep_weight(float weight, int token) const {
        return weight >= min_weight && (weight > edge || (weight == edge && token <= last_token));
    }
};

// Where the tokens are: the candidates in shared memory, or a part of the row.
struct Source {
    const float* scores;
    const int* tokens;  // null: token i has score i
    int begin;
    int end;

    __device__ __forceinline__ int token(int i) const { return tokens ? tokens[i] : i; }
};

// Candidates of a row with top_k, if there are few: comparing all pairs takes fewer steps than a search by digits of
// the keys.
struct Few {
    static constexpr int MOST = 256, WARPS = THREADS / 32;

    float weights[MOST];
    uint64_t whole[MOST];  // 0: not among the top_k
    uint64_t left[MOST];   // 0: filtered out

    // The sum over the candidates j of `value(j)`, the same in all lanes of the warp.
    template <typename Value>
    __device__ __forceinline__ static uint64_t sum_of(int count, Value value) {
        uint64_t sum = 0;
        for (int j = threadIdx.x % 32; j < count; j += 32) sum += value(j);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        return sum;
    }

    // The index of the sampled candidate in the first lane of one warp; -1 in all other threads.
    __device__ __forceinline__ int sampled(const float* scores, const int* tokens, int count, const Settings& settings,
                                         float peak) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        for (int i = threadIdx.x; i < count; i += THREADS) {
            weights[i] = exponential(scores[i], peak, settings.scale);
            whole[i] = whole_weight(weights[i]);
        }
        __syncthreads();
        for (int i = warp; i < count; i += WARPS) {
            const uint64_t ahead = sum_of(count, [&](int j) { return uint64_t(scores[j] > scores[i]); });
            if (ahead >= settings.top_k && lane == 0) whole[i] = 0;
        }
        __syncthreads();
        const uint64_t total = sum_of(count, [&](int j) { return whole[j]; }), share = share_of(total, settings.top_p);
        for (int i = warp; i < count; i += WARPS) {
            const float weight = weights[i];
            const int token = tokens[i];
            bool stays = weight >= settings.min_p;
            if (settings.top_p < 1.0) {
                stays &= sum_of(count, [&](int j) {
                             const bool ahead = weights[j] > weight || (weights[j] == weight && tokens[j] < token);
                             return ahead ? whole[j] : 0;
                         }) < share;
            }
            if (lane == 0) left[i] = stays ? whole[i] : 0;
        }
        __syncthreads();
        const uint64_t sum = sum_of(count, [&](int j) { return left[j]; });
        const uint64_t target = __umul64hi(random_word(settings), sum);
        int found = -1;
        for (int i = warp; i < count; i += WARPS) {
            const int token = tokens[i];
            const uint64_t before = sum_of(count, [&](int j) { return tokens[j] < token ? left[j] : 0; });
            if (lane == 0 && before <= target && target < before + left[i]) found = i;
        }
        return found;
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) choose_token(const __grid_constant__ Sampling params) {
    __shared__ Select<THREADS> select;
    __shared__ float list_scores[MOST_CANDIDATES];
    __shared__ int list_tokens[MOST_CANDIDATES];
    __shared__ float found_scores[MOST_LISTED];
    __shared__ int found_tokens[MOST_LISTED];
    __shared__ int found_count;
    __shared__ Few few;
    __shared__ uint64_t slice_sums[32];
    const int problem = blockIdx.x, lane = threadIdx.x % 32;
    let_later_kernels_start();
    wait_for_earlier_kernels();
    const Settings settings = params.settings[problem];
    if (settings.kind == IDLE) return;
    const RowState state = params.states[problem];
    const float* logits = params.logits + static_cast<int64_t>(settings.row) * params.vocab;
    Sampled sampled = {0, state.best, state.best, 0, 0.0f, state.peak, 0};
    if (settings.kind == BEST || state.best == NOT_FINITE) {
        if (threadIdx.x == 0) {
            if (state.best != NOT_FINITE) sampled.logit = logits[state.best];
            params.sampled[problem] = sampled;
        }
        return;
    }

    const int token_bits = 32 - __clz(params.vocab), count = params.counts[problem];
    const Source row = {scores_of(params, settings), nullptr, 0, params.vocab};
    Source source = row;
    uint64_t own_total = 0, total = 0, near = 0;
    if (settings.kind == LISTED || settings.top_k == 0) {
        const int64_t first = static_cast<int64_t>(problem) * params.slices;
        if (lane < params.slices) own_total = params.totals[first + lane];
        total = sum_of_warp(own_total);
        near = sum_of_warp(lane < params.slices ? params.near_totals[first + lane] : 0);
    }
    const bool wide = is_wide(settings, count, near, total);
    const bool has_list = has_order(settings) && count <= MOST_CANDIDATES && !wide;
    if (has_list) {
        const int64_t first = static_cast<int64_t>(problem) * MOST_CANDIDATES;
        for (int i = threadIdx.x; i < count; i += THREADS) {
            list_scores[i] = params.candidate_scores[first + i];
            list_tokens[i] = params.candidate_tokens[first + i];
        }
        source = {list_scores, list_tokens, 0, count};
    }
    if (threadIdx.x == 0) found_count = 0;
    select.clear();

    if (has_list && settings.kind == SAMPLED && settings.top_k > 0 && count <= Few::MOST) {
        const int i = few.sampled(list_scores, list_tokens, count, settings, state.peak);
        if (i >= 0) {
            sampled.token = list_tokens[i];
            sampled.logit = logits[sampled.token];
            params.sampled[problem] = sampled;
        }
        return;
    }

    Filters filters = {0u, 0.0f, ANY, settings.min_p};
    const auto weight_of = [&](float score) { return exponential(score, state.peak, settings.scale); };
    // The integer weight of item i if it survives, else 0.
    const auto left = [&](int i, float& weight) -> uint64_t {
        const float score = source.scores[i];
        if (!filters.keep_score(score)) return 0;
        weight = weight_of(score);
        return filters.keep_weight(weight, source.token(i)) ? whole_weight(weight) : 0;
    };
    const auto sum_of_left = [&]() {
        uint64_t sum = 0;
        float weight;
        for (int i = source.begin + threadIdx.x; i < source.end; i += THREADS) sum += left(i, weight);
        return select.sum_of(sum);
    };

    if (settings.top_k > 0 && count > settings.top_k) {
        const unsigned key = select.key_at(settings.top_k - 1, 32, source.begin, source.end,
                                           [&](int i, unsigned& key, uint64_t& sum) {
                                               const float score = source.scores[i];
                                               key = ~ordered(score);
                                               sum = 1;
                                               return score > minus_infinity();
                                           });
        filters.least_key = ~key;
        const int wanted = settings.top_k - static_cast<int>(select.before);
        if (settings.kind == LISTED && wanted < static_cast<int>(select.inside)) {
            // Of tokens that tie with the last one, take those with the lowest ids.
            __syncthreads();
            filters.last_token = select.key_at(wanted - 1, token_bits, source.begin, source.end,
                                               [&](int i, unsigned& key, uint64_t& sum) {
                                                   key = source.token(i);
                                                   sum = 1;
                                                   return ordered(source.scores[i]) == filters.least_key;
                                               });
        }
        __syncthreads();
    }

    if (settings.kind == LISTED) {
        for (int i = source.begin + threadIdx.x; i < source.end; i += THREADS) {
            const float score = source.scores[i];
            const unsigned key = ordered(score);
            if (score == minus_infinity() || key < filters.least_key) continue;
            if (key == filters.least_key && source.token(i) > filters.last_token) continue;
            const int place = atomicAdd(&found_count, 1);
            found_scores[place] = score;
            found_tokens[place] = source.token(i);
        }
        __syncthreads();
        const int listed = found_count;
        if (threadIdx.x < listed) {
            const float score = found_scores[threadIdx.x];
            const int token = found_tokens[threadIdx.x];
            int rank = 0;
            for (int i = 0; i < listed; i++)
                rank += found_scores[i] > score || (found_scores[i] == score && found_tokens[i] < token);
            params.listed_tokens[problem * MOST_LISTED + rank] = token;
            params.listed_logits[problem * MOST_LISTED + rank] = score;
        }
        if (threadIdx.x == 0) {
            sampled.total = total;
            sampled.logit = logits[state.best];
            sampled.listed = listed == settings.top_k ? listed : -1;
            params.sampled[problem] = sampled;
        }
        return;
    }

    bool by_slice = !has_order(settings);
    if (wide) {
        // Of the nucleus, all bins but the last one are certain; the tokens of that one are gathered.
        const uint64_t share = share_of(total, settings.top_p);
        const uint64_t* bins = params.bins + static_cast<int64_t>(problem) * params.slices * BINS;
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
            uint64_t sum = 0;
            for (int slice = 0; slice < params.slices; slice++) sum += bins[slice * BINS + bin];
            select.low[bin] = static_cast<unsigned>(sum);
            select.high[bin] = static_cast<unsigned>(sum >> 32);
        }
        select.find(share - 1);
        const int last_bin = select.digit;
        const uint64_t certain = select.before;
        const WeightBins of_row(weight_of(state.lowest));
        const float most = logf(of_row.most(last_bin)), least = logf(of_row.least(last_bin));
        // Wider than the error of `exponential`; the logarithm of 0 is -inf.
        const float highest = most + 1e-4f * (1.0f - most), deepest = least - 1e-4f * (1.0f - least);
        for (int from = threadIdx.x; from < params.vocab; from += LOADS * THREADS) {
            float some[LOADS];
#pragma unroll
            for (int j = 0; j < LOADS; j++) {
                const int i = from + j * THREADS;
                some[j] = i < params.vocab ? row.scores[i] : minus_infinity();
            }
#pragma unroll
            for (int j = 0; j < LOADS; j++) {
                const float power = __fmul_rn(__fsub_rn(some[j], state.peak), settings.scale);
                if (!(power <= highest && power >= deepest)) continue;
                const float weight = weight_of(some[j]);
                if (whole_weight(weight) == 0 || of_row.of(weight) != last_bin) continue;
                const int place = atomicAdd(&found_count, 1);
                if (place < MOST_CANDIDATES) {
                    list_scores[place] = some[j];
                    list_tokens[place] = from + j * THREADS;
                }
            }
        }
        __syncthreads();
        const int gathered = found_count;
        if (gathered <= MOST_CANDIDATES) {
            source = {list_scores, list_tokens, 0, gathered};
            const unsigned key = select.key_at(share - 1 - certain, WEIGHT_BITS, 0, gathered,
                                               [&](int i, unsigned& key, uint64_t& sum) {
                                                   const float weight = weight_of(list_scores[i]);
                                                   sum = whole_weight(weight);
                                                   key = ONE - __float_as_uint(weight);
                                                   return true;
                                               });
            filters.edge = __uint_as_float(ONE - key);
            const uint64_t each = whole_weight(filters.edge);
            const uint64_t wanted = (share - certain - select.before + each - 1) / each;
            const bool some = wanted * each < select.inside;
            __syncthreads();
            if (some) {
                filters.last_token = select.key_at(wanted - 1, token_bits, 0, gathered,
                                                   [&](int i, unsigned& key, uint64_t& sum) {
                                                       key = list_tokens[i];
                                                       sum = 1;
                                                       return weight_of(list_scores[i]) == filters.edge;
                                                   });
            }
            by_slice = settings.min_p <= filters.edge;
            if (by_slice) {
                // One warp sums each slice.
                const int slice = threadIdx.x / 32;
                uint64_t sum = 0;
                float weight;
                if (slice < params.slices) {
                    for (int bin = lane; bin < last_bin; bin += 32) sum += bins[slice * BINS + bin];
                    for (int i = lane; i < gathered; i += 32)
                        if (list_tokens[i] / params.slice == slice) sum += left(i, weight);
                }
                sum = sum_of_warp(sum);
                if (lane == 0) slice_sums[slice] = sum;
                __syncthreads();
                own_total = slice_sums[lane];
                total = sum_of_warp(own_total);
            }
            source = row;
        }
        // Else more tokens than fit have weights of about the same size.
    }
    if (settings.top_p < 1.0 && filters.edge == 0.0f) {
        // top_p applies to the tokens that survive top_k; min_p comes after it.
        filters.min_weight = 0.0f;
        const uint64_t sum = has_list || settings.top_k > 0 ? sum_of_left() : total;
        if (settings.top_k > 0) total = sum;
        const uint64_t share = share_of(total, settings.top_p);
        if (sum < share) source = row;
        for (;;) {
            const unsigned key = select.key_at(share - 1, WEIGHT_BITS, source.begin, source.end,
                                               [&](int i, unsigned& key, uint64_t& sum) {
                                                   float weight = 1.0f;
                                                   sum = left(i, weight);
                                                   key = ONE - __float_as_uint(weight);
                                                   return sum > 0;
                                               });
            filters.edge = __uint_as_float(ONE - key);
            // Tokens below the bound may have the same rounded weight as the last one.
            if (!source.tokens || settings.top_k > 0 || filters.edge > 1.00001f * weight_of(state.bound)) break;
            source = row;
            filters.edge = 0.0f;
            __syncthreads();
        }
        const uint64_t each = whole_weight(filters.edge), wanted = (share - select.before + each - 1) / each;
        const bool some = wanted * each < select.inside;
        __syncthreads();
        if (some) {
            filters.last_token = select.key_at(wanted - 1, token_bits, source.begin, source.end,
                                               [&](int i, unsigned& key, uint64_t& sum) {
                                                   const float score = source.scores[i];
                                                   key = source.token(i);
                                                   sum = 1;
                                                   return filters.keep_score(score) &&
                                                          weight_of(score) == filters.edge;
                                               });
        }
        filters.min_weight = settings.min_p;
    }

    const uint64_t word = random_word(settings);
    uint64_t target;
    if (!by_slice) {
        target = __umul64hi(word, sum_of_left());
    } else {
        // Choose the slice by its sum, then the token in it.
        target = __umul64hi(word, total);
        int slice = 0;
        for (; slice < params.slices - 1; slice++) {
            const uint64_t sum = __shfl_sync(0xffffffffu, own_total, slice);
            if (target < sum) break;
            target -= sum;
        }
        source.begin = slice * params.slice;
        source.end = min(source.begin + params.slice, params.vocab);
    }
    __syncthreads();
    const unsigned token = select.key_at(target, token_bits, source.begin, source.end,
                                         [&](int i, unsigned& key, uint64_t& sum) {
                                             float weight;
                                             key = source.token(i);
                                             sum = left(i, weight);
                                             return sum > 0;
                                         });
    if (threadIdx.x == 0) {
        sampled.token = token;
        sampled.logit = logits[token];
        params.sampled[problem] = sampled;
    }
}
