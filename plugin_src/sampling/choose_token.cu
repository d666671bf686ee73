// Chooses the token of each row: applies its filters exactly, to the candidates or, if they are not enough, to all
// tokens, and samples one. Also lists the most likely tokens.
//
// Grid: problems; THREADS threads per block. Macros: THREADS.
#include "common/launch.cuh"
#include "sampling/select.cuh"

namespace {

constexpr int WEIGHT_BITS = 30;  // of the difference from ONE
constexpr int ANY = 0x7fffffff;
static_assert(MOST_PART <= 2 * THREADS && MOST_PARTS <= THREADS, "limits of item_at and sum_of");

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
    __shared__ unsigned long long part_sums[MOST_PARTS];
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

    const int token_bits = 32 - __clz(params.vocab), count = params.counts[problem], part = params.slice / PARTS;
    const Source row = {scores_of(params, settings), nullptr, 0, params.vocab};
    Source source = row;
    const bool bins_scores = has_bins(settings), is_short = has_order(settings) && count <= MOST_CANDIDATES;
    const bool has_list = is_short && !bins_scores;
    const int parts = params.slices * PARTS;
    const int64_t first_part = static_cast<int64_t>(problem) * parts;
    const int64_t list = static_cast<int64_t>(problem) * MOST_GATHERED;
    // Whether part_sums has the sum of the surviving tokens of each part of the row.
    bool by_part = !has_order(settings);
    if (by_part || bins_scores) {
        const uint64_t* sums = bins_scores ? params.above_window : params.totals;
        for (int i = threadIdx.x; i < parts; i += THREADS) part_sums[i] = sums[first_part + i];
    }
    // Sums of a row's parts, in all threads.
    const auto sum_of_parts = [&](const uint64_t* sums) {
        uint64_t sum = 0;
        for (int i = lane; i < parts; i += 32) sum += sums[first_part + i];
        return sum_of_warp(sum);
    };
    uint64_t total = settings.kind == LISTED || settings.top_k == 0 ? sum_of_parts(params.totals) : 0;
    const uint64_t above = bins_scores ? sum_of_parts(params.above_window) : 0;
    Source gathered = {params.gathered_scores + list, params.gathered_tokens + list, 0, count};
    if (is_short) {
        for (int i = threadIdx.x; i < count; i += THREADS) {
            list_scores[i] = gathered.scores[i];
            list_tokens[i] = gathered.tokens[i];
        }
        gathered = {list_scores, list_tokens, 0, count};
        if (has_list) source = gathered;
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
    // The id of the last token with the weight `edge` in a nucleus of the sum `share`, after `key_at` has found it.
    const auto last_token = [&](uint64_t share) {
        const uint64_t each = whole_weight(filters.edge), wanted = (share - select.before + each - 1) / each;
        const bool some = wanted * each < select.inside;
        __syncthreads();
        if (!some) return ANY;
        return static_cast<int>(select.key_at(wanted - 1, token_bits, source.begin, source.end,
                                              [&](int i, unsigned& key, uint64_t& sum) {
                                                  const float score = source.scores[i];
                                                  key = source.token(i);
                                                  sum = 1;
                                                  return filters.keep_score(score) && weight_of(score) == filters.edge;
                                              }));
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

    if (bins_scores) {
        const Window window = params.windows[problem];
        const PowerBins bins(window.width);
        const uint64_t share = share_of(total, settings.top_p);
        if (count <= MOST_GATHERED && above < share) {
            source = gathered;
            uint64_t inside = 0;
            for (int i = threadIdx.x; i < count; i += THREADS) inside += whole_weight(weight_of(source.scores[i]));
            if (above + select.sum_of(inside) >= share) {
                // Bounds of the weights in the window, widened by more than the error of `most`.
                const unsigned highest = __float_as_uint(fminf(1.0001f * bins.most(window.first), 1.0f));
                const float least = window.last == BINS - 1 ? 0.0f : 0.9999f * bins.most(window.last + 1);
                const int bits = min(32 - __clz(highest - __float_as_uint(least)), WEIGHT_BITS);
                const unsigned key = select.key_at(share - 1 - above, bits, 0, count,
                                                   [&](int i, unsigned& key, uint64_t& sum) {
                                                       const float weight = weight_of(source.scores[i]);
                                                       sum = whole_weight(weight);
                                                       key = highest - __float_as_uint(weight);
                                                       return sum > 0;
                                                   });
                const float edge = __uint_as_float(highest - key);
                // No token outside of the window may have the weight of the nucleus' last one.
                const bool is_inside = (window.first == 0 || edge * 1.00002f < bins.most(window.first)) &&
                                       (window.last == BINS - 1 || edge > 1.00002f * bins.most(window.last + 1));
                if (is_inside) {
                    filters.edge = edge;
                    filters.last_token = last_token(share - above);
                    by_part = settings.min_p <= edge;
                    float weight;
                    for (int i = threadIdx.x; i < count && by_part; i += THREADS)
                        if (const uint64_t sum = left(i, weight)) atomicAdd(&part_sums[source.token(i) / part], sum);
                }
            }
            source = row;
        }
        // Else the nucleus ends in another bin, or many tokens have about the same weight.
    }
    if (settings.top_p < 1.0 && filters.edge == 0.0f) {
        // top_p applies to the tokens that survive top_k; min_p comes after it.
        filters.min_weight = 0.0f;
        if (settings.top_k > 0) total = sum_of_left();
        const uint64_t share = share_of(total, settings.top_p);
        const unsigned key = select.key_at(share - 1, WEIGHT_BITS, source.begin, source.end,
                                           [&](int i, unsigned& key, uint64_t& sum) {
                                               float weight = 1.0f;
                                               sum = left(i, weight);
                                               key = ONE - __float_as_uint(weight);
                                               return sum > 0;
                                           });
        filters.edge = __uint_as_float(ONE - key);
        filters.last_token = last_token(share);
        filters.min_weight = settings.min_p;
    }
    __syncthreads();

    const uint64_t word = random_word(settings);
    if (by_part) {
        // Choose the part by its sum, then the token in it.
        uint64_t target = __umul64hi(word, select.sum_of(threadIdx.x < parts ? part_sums[threadIdx.x] : 0));
        const int chosen = select.item_at(target, 0, parts, [&](int i) { return part_sums[i]; });
        target -= select.before;
        source.begin = chosen * part;
        source.end = min(source.begin + part, params.vocab);
        __syncthreads();
        float weight;
        const int token = select.item_at(target, source.begin, source.end, [&](int i) { return left(i, weight); });
        if (threadIdx.x == 0) {
            sampled.token = token;
            sampled.logit = logits[token];
            params.sampled[problem] = sampled;
        }
        return;
    }
    const uint64_t target = __umul64hi(word, sum_of_left());
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
