// Logits of a model in llama.cpp: llama_logits MODEL TOKENS WINDOW FIRST THREADS
//
// TOKENS: a file of int32 token ids, windows of WINDOW tokens, each a new sequence. Standard output: the logits,
// float32 [vocab], after each token of a window from token FIRST to the last one.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

namespace {

[[noreturn]] void stop(const char* what) {
    std::fprintf(stderr, "llama_logits: %s\n", what);
    std::exit(1);
}

}  // namespace

int main(int count, char** given) {
    if (count != 6) stop("expected MODEL TOKENS WINDOW FIRST THREADS");
    const int window = std::atoi(given[3]), first = std::atoi(given[4]), threads = std::atoi(given[5]);
    auto print = [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
    };
    llama_log_set(print, nullptr);
    llama_model* model = llama_model_load_from_file(given[1], llama_model_default_params());
    if (!model) stop("the model cannot be loaded");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = static_cast<uint32_t>(window);
    params.n_threads = params.n_threads_batch = threads;
    llama_context* context = llama_init_from_model(model, params);
    if (!context) stop("no context can be created");
    const auto vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    std::FILE* tokens = std::fopen(given[2], "rb");
    if (!tokens) stop("the file of tokens cannot be read");
    std::vector<llama_token> ids(static_cast<size_t>(window));
    llama_batch batch = llama_batch_init(window, 0, 1);
    batch.n_tokens = window;
    while (std::fread(ids.data(), sizeof ids[0], ids.size(), tokens) == ids.size()) {
        llama_memory_clear(llama_get_memory(context), true);
        for (int i = 0; i < window; ++i) {
            batch.token[i] = ids[static_cast<size_t>(i)], batch.pos[i] = i, batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0, batch.logits[i] = i >= first;
        }
        if (llama_decode(context, batch) != 0) stop("the tokens cannot be decoded");
        for (int i = first; i < window; ++i) {
            const float* logits = llama_get_logits_ith(context, i);
            if (!logits || std::fwrite(logits, sizeof *logits, vocab, stdout) != vocab) stop("no logits were written");
        }
    }
    return std::fflush(stdout) == 0 ? 0 : 1;
}
