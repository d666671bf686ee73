// Sampling of a token from each row of logits: settings, results and intermediate buffers.
//
// score_slices edits the logits and finds the peak of each row. weigh_slices sums the weights, and gathers the tokens
// that can survive top_k; of rows with top_p alone it counts the tokens by score, and finds a window of scores in which
// the nucleus ends. gather_window gathers the tokens of the window. choose_token applies the filters exactly and
// samples. All sums are of integers, so the order of summation cannot change a token: the result is that of
// hybridge.runtime.sampling.
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
    float bound;  // every token that can survive top_k has at least this score
    float lowest;  // the smallest score
};

// The bins of scores that probably contain the last token of the nucleus, of a row with top_p alone.
struct Window {
    int first;
    int last;
    float width;  // of a bin, in natural logarithms of the weight
    int padding;
};

// Rows of `vocab` logits in `slices` of `slice` tokens.
struct Sampling {
    const float* logits;       // [rows, vocab]
    const Settings* settings;  // [problems]
    const Edit* edits;         // by ascending token in each row's part
    const uint32_t* masks;     // [rows, ceil(vocab / 32)]
    float* scores;             // [rows, vocab]: the logits after the edits, of rows that have any
    float* peaks;              // [problems, slices, THREADS]: the largest score of each thread
    uint64_t* totals;          // [problems, slices, PARTS]: weights; with top_p alone approximate until gather_window
    RowState* states;          // [problems]
    uint64_t* above_window;    // [problems, slices, PARTS]: sums of the weights in bins before the window
    uint32_t* bins;            // [problems, slices, BINS / 2]: tokens by score, two numbers of 16 bits each
    Window* windows;           // [problems]
    int* slice_best;           // [problems, slices, 3]: the best of a slice, score (its bits) and token; lowest score
    int* counts;               // [problems]: gathered tokens; the list holds the first MOST_GATHERED
    float* gathered_scores;    // [problems, MOST_GATHERED]
    int* gathered_tokens;
    int* arrived;              // [problems], zero between kernels: slices done so far
    Sampled* sampled;          // [problems]
    int* listed_tokens;        // [problems, MOST_LISTED]
    float* listed_logits;
    int vocab;
    int slices;
    int slice;
};
