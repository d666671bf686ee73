// Seconds in which llama.cpp loads a model and decodes one token: llama_load MODEL THREADS
//
// Standard output: the seconds. The time to start the process and to load libraries is not included.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "llama.h"

int main(int count, char** given) {
    if (count != 3) return 2;
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    const auto started = std::chrono::steady_clock::now();
    llama_model* model = llama_model_load_from_file(given[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_threads = params.n_threads_batch = std::atoi(given[2]);
    llama_context* context = llama_init_from_model(model, params);
    llama_token token = 1;
    if (!context || llama_decode(context, llama_batch_get_one(&token, 1)) != 0) return 1;
    llama_synchronize(context);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    return std::printf("%.6f\n", seconds.count()) > 0 && std::fflush(stdout) == 0 ? 0 : 1;
}
