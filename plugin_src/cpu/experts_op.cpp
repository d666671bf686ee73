// The custom operator `RoutedExperts` of the domain hybridge.cpu.
//
// Inputs: x float32 [..., hidden], ids int32 and weights float32 [..., top_k]; the first weight of all experts [experts
// * up_rows, hidden] and the second [experts * hidden, size], each a matrix and scales of cpu::StoredWeight; biases
// float32 [experts, up_rows] and [experts, hidden], and the zeros of both weights, which may be left out. up_rows is
// size, or twice that where gated. Output: y as x, the weighted sum of the chosen experts.
// Attributes: experts; activation, gated, alpha, limit, offset and size of cpu::Activate; those of cpu::StoredWeight
// with the prefixes up_ and down_; instructions (cpu::Choice).
#include <algorithm>
#include <vector>

#include "library.h"
#include "memory.h"
#include "product.h"
#include "stored_weight.h"

namespace {

constexpr ort::Input floats{ort::float32_type}, bytes{ort::uint8_type}, optional_floats{ort::float32_type, true};
constexpr ort::Input optional_zeros{ort::int8_type, true};
// Tokens of several experts that are computed at once; the intermediate results of so many stay in the caches.
constexpr int64_t most_at_once = 64;
constexpr int64_t task_bytes = 1 << 16;

thread_local cpu::Memory memory;

// A token's use of an expert.
struct Use {
    int64_t token;
    float factor;
};

// One expert in a call: its uses, and its products with these tokens.
struct Expert {
    int64_t number;
    const Use* uses;
    cpu::Product up, down;
    float *u, *activated, *result;  // [uses, up_rows], [uses, size], [uses, hidden]
};

class RoutedExperts : ort::KernelOp {
  public:
    static constexpr const char* name = "RoutedExperts";
    static constexpr ort::Input inputs[] = {floats, {ort::int32_type}, floats, bytes, optional_floats,
                                            bytes, optional_floats, optional_floats, optional_floats,
                                            optional_zeros, optional_zeros};
    static constexpr size_t outputs = 1;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        int64_t kind = 0, gated = 0;
        struct {
            const char* name;
            int64_t* value;
        } const integers[] = {{"experts", &experts_}, {"activation", &kind}, {"gated", &gated},
                        {"size", &activate_.size}};
        for (auto [name, value] : integers) {
            if (auto* status = api->attribute(info, name, value)) return status;
        }
        if (auto* status = api->attribute(info, "alpha", &activate_.alpha)) return status;
        if (auto* status = api->attribute(info, "limit", &activate_.limit)) return status;
        if (auto* status = api->attribute(info, "offset", &activate_.offset)) return status;
        if (auto* status = up_.create(*api, info, "up_")) return status;
        if (auto* status = down_.create(*api, info, "down_")) return status;
        activate_.kind = static_cast<cpu::Activation>(kind), activate_.gated = gated != 0;
        return nullptr;
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[11], y;
        if (auto* status = ort::read_all(*api_, context, in)) return status;
        Call call{};
        if (!describe(in, call)) {
            return api_->status(ort::invalid_argument, "RoutedExperts: expected inputs whose sizes agree");
        }
        if (!sort_uses(static_cast<const int32_t*>(in[1].data), in[2].floats(), call)) {
            return api_->status(ort::invalid_argument, "RoutedExperts: expected the numbers of experts, found others");
        }
        y.sizes = in[0].sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        call.y = static_cast<float*>(y.data);
        std::fill(call.y, call.y + call.tokens * call.hidden, 0.0f);
        // Experts with few tokens together, others one by one.
        for (size_t first = 0, last; first < static_cast<size_t>(experts_); first = last) {
            for (last = first + 1; last < static_cast<size_t>(experts_); ++last) {
                if (call.starts[last + 1] - call.starts[first] > most_at_once) break;
            }
            if (call.starts[last] == call.starts[first]) continue;
            if (auto* status = run(context, call, first, last)) return status;
        }
        return nullptr;
    }

  private:
    struct Call {
        int64_t tokens, top_k, hidden, up_rows;
        const float *x, *up_bias, *down_bias;
        float* y;
        cpu::Weight up, down;  // of all experts
        std::vector<int64_t> starts;  // expert e has uses starts[e] to starts[e + 1]
        std::vector<Use> uses;
    };

    bool describe(const ort::Tensor (&in)[11], Call& c) const {
        const auto& [x, ids, weights, up, up_scales, down, down_scales, up_bias, down_bias, up_zeros, down_zeros] = in;
        if (x.sizes.empty() || ids.sizes.size() != x.sizes.size() || !weights.is(ids.sizes) || experts_ <= 0)
            return false;
        c.tokens = 1;
        for (size_t i = 0; i + 1 < x.sizes.size(); ++i) {
            if (ids.sizes[i] != x.sizes[i]) return false;
            c.tokens *= x.sizes[i];
        }
        c.hidden = x.sizes.back(), c.top_k = ids.sizes.back();
        c.up_rows = (activate_.gated ? 2 : 1) * activate_.size;
        if (!up_.read(up, up_scales, up_zeros, experts_ * c.up_rows, c.hidden, c.up)) return false;
        if (!down_.read(down, down_scales, down_zeros, experts_ * c.hidden, activate_.size, c.down)) return false;
        if ((c.up.is_tiled() && c.up_rows % cpu::tile_rows) || (c.down.is_tiled() && c.hidden % cpu::tile_rows))
            return false;
        c.x = x.floats(), c.up_bias = up_bias.floats(), c.down_bias = down_bias.floats();
        return (!c.up_bias || up_bias.is({experts_, c.up_rows})) &&
               (!c.down_bias || down_bias.is({experts_, c.hidden}));
    }

    // False where an id is not that of an expert.
    bool sort_uses(const int32_t* ids, const float* factors, Call& c) const {
        const int64_t count = c.tokens * c.top_k;
        c.starts.assign(static_cast<size_t>(experts_) + 1, 0);
        c.uses.resize(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
            if (ids[i] < 0 || ids[i] >= experts_) return false;
            ++c.starts[static_cast<size_t>(ids[i]) + 1];
        }
        for (size_t e = 0; e < static_cast<size_t>(experts_); ++e) c.starts[e + 1] += c.starts[e];
        std::vector<int64_t> next(c.starts.begin(), c.starts.end() - 1);
        for (int64_t i = 0; i < count; ++i) {
            c.uses[static_cast<size_t>(next[static_cast<size_t>(ids[i])]++)] = {i / c.top_k, factors[i]};
        }
        return true;
    }

    // Adds what experts first to last give to y.
    ort::Status* run(ort::Context* context, const Call& c, size_t first, size_t last) const {
        std::vector<Expert> experts;
        std::vector<std::pair<size_t, int64_t>> uses;  // expert in `experts`, number of the use
        int64_t needed = 0;
        for (size_t e = first; e < last; ++e) {
            const int64_t number = static_cast<int64_t>(e), count = c.starts[e + 1] - c.starts[e];
            if (count == 0) continue;
            for (int64_t m = 0; m < count; ++m) uses.emplace_back(experts.size(), m);
            experts.push_back({number, &c.uses[static_cast<size_t>(c.starts[e])],
                               {*kernels_, c.up.part(number * c.up_rows, c.up_rows), count, up_.is_exact()},
                               {*kernels_, c.down.part(number * c.hidden, c.hidden), count, down_.is_exact()},
                               nullptr, nullptr, nullptr});
            needed += experts.back().up.input_bytes() + experts.back().down.input_bytes();
            needed += cpu::pad(4 * count * (c.up_rows + activate_.size + c.hidden), 64);
        }
        uint8_t* at = memory.bytes(needed);
        if (!at) return api_->status(ort::fail, "RoutedExperts: expected memory for inputs, found none");
        for (Expert& e : experts) {
            e.up.use(at), at += e.up.input_bytes();
            e.down.use(at), at += e.down.input_bytes();
            e.u = reinterpret_cast<float*>(at);
            e.activated = e.u + e.up.count() * c.up_rows, e.result = e.activated + e.up.count() * activate_.size;
            at += cpu::pad(4 * e.up.count() * (c.up_rows + activate_.size + c.hidden), 64);
        }
        const int64_t count = static_cast<int64_t>(uses.size());
        auto for_uses = [&](int64_t width, auto step) {
            auto run = [&](int64_t from, int64_t to) {
                for (int64_t i = from; i < to; ++i) {
                    step(experts[uses[static_cast<size_t>(i)].first], uses[static_cast<size_t>(i)].second);
                }
            };
            return ort::spread_ranges(*api_, context, count, 4 * count * width, task_bytes, run);
        };
        auto* status =
            for_uses(c.hidden, [&](Expert& e, int64_t m) { e.up.prepare(c.x + e.uses[m].token * c.hidden, m); });
        if (!status) status = multiply(context, experts, &Expert::up, &Expert::u);
        if (!status) {
            status = for_uses(2 * c.up_rows, [&](Expert& e, int64_t m) {
                float *u = e.u + m * c.up_rows, *activated = e.activated + m * activate_.size;
                for (int64_t i = 0; c.up_bias && i < c.up_rows; ++i) u[i] += c.up_bias[e.number * c.up_rows + i];
                kernels_->activate(activate_, u, activate_.gated ? u + activate_.size : nullptr, activate_.size,
                                   activated);
                e.down.prepare(activated, m);
            });
        }
        if (!status) status = multiply(context, experts, &Expert::down, &Expert::result);
        return status ? status : add(context, c, experts);
    }

    // One product of all experts.
    ort::Status* multiply(ort::Context* context, const std::vector<Expert>& experts, cpu::Product Expert::*product,
                          float* Expert::*out) const {
        std::vector<std::pair<const Expert*, int64_t>> tasks;  // the expert, and its first row
        for (const Expert& e : experts) {
            const cpu::Product& p = e.*product;
            const int64_t size = p.task_rows(p.useful_tasks());
            for (int64_t row = 0; row < p.weight().rows; row += size) tasks.emplace_back(&e, row);
        }
        return ort::spread_tasks(*api_, context, static_cast<int64_t>(tasks.size()), [&](int64_t task) {
            const auto [e, row] = tasks[static_cast<size_t>(task)];
            const cpu::Product& p = e->*product;
            p.run(e->*out, row, std::min(p.weight().rows, row + p.task_rows(p.useful_tasks())));
        });
    }

    // y of each token += factor * (result + bias). Tasks share columns: experts may have tokens in common.
    ort::Status* add(ort::Context* context, const Call& c, const std::vector<Expert>& experts) const {
        int64_t count = 0;
        for (const Expert& e : experts) count += e.up.count();
        auto run = [&](int64_t from, int64_t to) {
            for (const Expert& e : experts) {
                const float* bias = c.down_bias ? c.down_bias + e.number * c.hidden : nullptr;
                for (int64_t m = 0; m < e.up.count(); ++m) {
                    float* y = c.y + e.uses[m].token * c.hidden;
                    const float *result = e.result + m * c.hidden, factor = e.uses[m].factor;
                    for (int64_t i = from; i < to; ++i) y[i] += factor * (result[i] + (bias ? bias[i] : 0.0f));
                }
            }
        };
        return ort::spread_ranges(*api_, context, c.hidden, 4 * count * c.hidden, task_bytes, run);
    }

    cpu::StoredWeight up_, down_;
    cpu::Activate activate_{};
    int64_t experts_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::experts_op() { return ort::described<RoutedExperts>(); }
