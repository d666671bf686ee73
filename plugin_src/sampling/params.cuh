// Sampling of a token from each row of logits: settings, results and intermediate buffers.
//
// score_slices edits the logits and finds the peak of each row, weigh_slices sums the weights and gathers the tokens
// that can survive the filters, bin_weights sums the weights of rows with a wide nucleus by size, choose_token applies
// the filters exactly and samples. All sums are of integers, so the
// order of summation cannot change a token: the result is that of hybridge.runtime.sampling.
#pragma once

#include "common/integers.cuh"

// Settings of one problem (a row of logits). 64 bytes, in the layout that the engine writes.
struct Settings {
    uint64_t key_low;   // Philox key
    uint64_t key_high;
    uint64_t position;  // tokens of the answer before this one
    double top_p;       // 1: off
    float scale;        // 1 / temperature
    float min_p;        // 0: off
    int kind;           // IDLE, BEST, SAMPLED or LISTED
    int row;            // row of the logits
    int top_k;          // 0: off; LISTED: tokens in the list
    int edits_begin;    // this row's part of the edits
    int edits_end;
    int masked;         // whether its mask says which tokens are allowed
};

// A change of one logit: add `bias`, multiply by `factor` if the sum is negative or divide by it if not, subtract
// `minus`.
struct Edit {
    int token;
    float bias;
    float factor;
    float minus;
};

// Result of one problem. token, and best (the most likely one): -1 if the logits, before or after the edits, are not
// finite. LISTED: `listed` is the number of tokens in the list, -1 if there are fewer than requested; the sum of
// exp(logit - peak) over the row is total / 2^40.
struct Sampled {
    uint64_t total;
    int token;
    int best;
    int listed;
    float logit;  // of the token, before the edits
    float peak;
    int padding;
};

// State of one problem between the kernels.
struct RowState {
    float peak;   // the largest score
    int best;     // the first token with that score; -1: not finite
    float bound;  // every token that can survive the filters has at least this score, unless the nucleus is wide
    float lowest;  // the smallest score
};

// Rows of `vocab` logits in `slices` of `slice` tokens.
struct Sampling {
    const float* logits;       // [rows, vocab]
    const Settings* settings;  // [problems]
    const Edit* edits;         // by ascending token in each row's part
    const uint32_t* masks;     // [rows, ceil(vocab / 32)]
    float* scores;             // [rows, vocab]: the logits after the edits, of rows that have any
    float* peaks;              // [problems, slices, THREADS]: the largest score of each thread
    uint64_t* totals;          // [problems, slices]
    RowState* states;          // [problems]
    uint64_t* near_totals;     // [problems, slices]: of the tokens whose scores are at least `bound`
    uint64_t* bins;            // [problems, slices, BINS]: sums of weights by size, of rows with a wide nucleus
    int* slice_best;           // [problems, slices, 3]: the best of a slice, score (its bits) and token; lowest score
    int* counts;               // [problems]: candidates; the list holds the first MOST_CANDIDATES
    float* candidate_scores;
    int* candidate_tokens;
    int* arrived;              // [problems], zero between steps: slices scored so far
    Sampled* sampled;          // [problems]
    int* listed_tokens;        // [problems, MOST_LISTED]
    float* listed_logits;
    int vocab;
    int slices;
    int slice;
};
