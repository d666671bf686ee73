// The custom operator `FusedLinear` of the domain hybridge.cpu: up to four products of one input, and what is around
// them.
//
// Inputs: x float32 [..., columns]; norm float32 [columns], the weight of an RMS norm of x, or left out; added float32
// [..., rows], to the only output, or left out; four weights: matrix, scales and zeros of cpu::StoredWeight each, of
// which the last weights may be left out. Outputs: float32 [..., rows] of each weight. With an activation, one output
// of two weights: activation(first) * second.
// Attributes: rows_0 to rows_3 (0 without a weight); epsilon (of the norm); activation (cpu::Activation, -1 without);
// those of cpu::StoredWeight, the same for all weights; instructions (cpu::Choice).
#include <algorithm>
#include <atomic>

#include "library.h"
#include "memory.h"
#include "product.h"
#include "stored_weight.h"

namespace {

constexpr ort::Input floats{ort::float32_type}, optional_floats{ort::float32_type, true};
constexpr ort::Input bytes{ort::uint8_type}, optional_bytes{ort::uint8_type, true};
constexpr ort::Input optional_zeros{ort::int8_type, true};
// Inputs of a task that prepares them.
constexpr int64_t task_inputs = 16;
constexpr size_t most_weights = 4;

// Bytes of a task's gates that are computed before they are activated: they stay in the second cache.
constexpr int64_t gate_bytes = 1 << 18;

thread_local cpu::Memory memory, gate_memory;

class FusedLinear : ort::KernelOp {
  public:
    static constexpr const char* name = "FusedLinear";
    static constexpr ort::Input inputs[] = {
        floats, optional_floats, optional_floats, bytes, optional_floats, optional_zeros,
        optional_bytes, optional_floats, optional_zeros, optional_bytes, optional_floats, optional_zeros,
        optional_bytes, optional_floats, optional_zeros};
    static constexpr size_t outputs = most_weights, needed_outputs = 1;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        int64_t kind = 0;
        const char* const names[most_weights] = {"rows_0", "rows_1", "rows_2", "rows_3"};
        for (size_t i = 0; i < most_weights; ++i) {
            if (auto* status = api->attribute(info, names[i], &rows_[i])) return status;
            if (rows_[i] > 0 && weights_ == i) ++weights_;
        }
        if (auto* status = api->attribute(info, "epsilon", &epsilon_)) return status;
        if (auto* status = api->attribute(info, "activation", &kind)) return status;
        if (auto* status = stored_.create(*api, info, "")) return status;
        activate_.kind = static_cast<cpu::Activation>(kind), is_gated_ = kind >= 0;
        return nullptr;
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor x, norm, added;
        if (auto* status = ort::read(*api_, context, 0, x)) return status;
        if (auto* status = ort::read(*api_, context, 1, norm)) return status;
        if (auto* status = ort::read(*api_, context, 2, added)) return status;
        if (x.sizes.empty() || weights_ == 0 || (is_gated_ && (weights_ != 2 || rows_[0] != rows_[1])))
            return refusal();
        Call call{};
        call.x = x.floats(), call.columns = x.sizes.back(), call.norm = norm.floats(), call.added = added.floats();
        call.count = 1;
        for (size_t i = 0; i + 1 < x.sizes.size(); ++i) call.count *= x.sizes[i];
        if (norm.data && !norm.is({call.columns})) return refusal();
        for (size_t i = 0; i < weights_; ++i) {
            ort::Tensor stored, scales, zeros;
            if (auto* status = ort::read(*api_, context, 3 + 3 * i, stored)) return status;
            if (auto* status = ort::read(*api_, context, 4 + 3 * i, scales)) return status;
            if (auto* status = ort::read(*api_, context, 5 + 3 * i, zeros)) return status;
            if (!stored_.read(stored, scales, zeros, rows_[i], call.columns, call.weights[i])) return refusal();
        }
        for (size_t i = 0; i < (is_gated_ ? 1 : weights_); ++i) {
            ort::Tensor y;
            y.sizes = x.sizes;
            y.sizes.back() = rows_[i];
            if (added.data && (i > 0 || !added.is(y.sizes))) return refusal();
            if (auto* status = ort::make(*api_, context, i, y)) return status;
            call.y[i] = static_cast<float*>(y.data);
        }
        return call.count == 0 ? nullptr : multiply(context, call);
    }

  private:
    struct Call {
        const float *x, *norm, *added;
        int64_t count, columns;
        cpu::Weight weights[most_weights];
        float* y[most_weights];
    };
    // A range of rows of a product.
    struct Task {
        size_t product;
        int64_t first, last;
    };

    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument, "FusedLinear: expected inputs whose sizes agree");
    }

    ort::Status* multiply(ort::Context* context, const Call& c) const {
        std::vector<cpu::Product> products;
        for (size_t i = 0; i < weights_; ++i)
            products.emplace_back(*kernels_, c.weights[i], c.count, stored_.is_exact());
        const int64_t preparations = (c.count + task_inputs - 1) / task_inputs, input_bytes = products[0].input_bytes();
        const int64_t norm_bytes = c.norm ? cpu::pad(4 * c.columns, 64) : 0;
        uint8_t* at = memory.bytes(input_bytes + preparations * norm_bytes);
        if (!at) return api_->status(ort::fail, "FusedLinear: expected memory for inputs, found none");
        for (auto& product : products) product.use(at);
        uint8_t* normed = at + input_bytes;
        auto prepare = [&](int64_t task) {
            float* row = reinterpret_cast<float*>(normed + task * norm_bytes);
            for (int64_t m = task * task_inputs; m < c.count && m < (task + 1) * task_inputs; ++m) {
                const float* from = c.x + m * c.columns;
                if (c.norm) kernels_->rms_norm(from, c.norm, c.columns, epsilon_, row), from = row;
                products[0].prepare(from, m);
            }
        };
        if (auto* status = ort::spread_tasks(*api_, context, preparations, prepare)) return status;
        std::vector<Task> tasks;
        for (size_t i = 0; i < (is_gated_ ? 1 : weights_); ++i) {
            const int64_t size = products[i].task_rows(products[i].useful_tasks());
            for (int64_t row = 0; row < rows_[i]; row += size) {
                tasks.push_back({i, row, row + size < rows_[i] ? row + size : rows_[i]});
            }
        }
        std::atomic<bool> failed{false};
        auto* status = ort::spread_tasks(*api_, context, static_cast<int64_t>(tasks.size()), [&](int64_t number) {
            const auto [i, first, last] = tasks[static_cast<size_t>(number)];
            const int64_t rows = rows_[i];
            float* y = c.y[i];
            if (is_gated_) {
                if (!run_gated(products, c.count, first, last, y)) failed = true;
            } else {
                products[i].run(y, first, last);
            }
            for (int64_t m = 0; c.added && m < c.count; ++m) {
                for (int64_t r = m * rows + first; r < m * rows + last; ++r) y[r] += c.added[r];
            }
        });
        if (status) return status;
        return failed ? api_->status(ort::fail, "FusedLinear: expected memory for gates, found none") : nullptr;
    }

    // y[:, first:last]; false without memory.
    bool run_gated(const std::vector<cpu::Product>& products, int64_t count, int64_t first, int64_t last,
                   float* y) const {
        const int64_t unit = products[0].unit_rows(), units = std::max<int64_t>(1, gate_bytes / (8 * count * unit));
        const int64_t most = std::min(last - first, units * unit);
        auto* gates = reinterpret_cast<float*>(gate_memory.bytes(8 * count * most));
        if (!gates) return false;
        for (int64_t at = first; at < last; at += most) {
            const int64_t size = std::min(most, last - at);
            float* values = gates + count * size;
            products[0].run_alone(gates, at, at + size), products[1].run_alone(values, at, at + size);
            for (int64_t m = 0; m < count; ++m) {
                kernels_->activate(activate_, gates + m * size, values + m * size, size, y + m * rows_[0] + at);
            }
        }
        return true;
    }

    cpu::StoredWeight stored_;
    int64_t rows_[most_weights] = {};
    size_t weights_ = 0;
    float epsilon_ = 0;
    cpu::Activate activate_{cpu::silu_activation, true, 1.0f, __builtin_inff(), 0.0f, 0};
    bool is_gated_ = false;
};

}  // namespace

const ort::CustomOp& cpu::fused_linear_op() { return ort::described<FusedLinear>(); }
