// The custom operator `Linear` of the domain hybridge.cpu.
//
// Inputs: x float32 [..., columns]; weight, scales and zeros of cpu::StoredWeight. Output: float32 [..., rows].
// Attributes: rows; those of cpu::StoredWeight; instructions (cpu::Choice).
#include "library.h"
#include "memory.h"
#include "product.h"
#include "stored_weight.h"

namespace {

// Inputs of a task that prepares them.
constexpr int64_t task_inputs = 16;

thread_local cpu::Memory input_memory;

class Linear : ort::KernelOp {
  public:
    static constexpr const char* name = "Linear";
    static constexpr ort::Input inputs[] = {
        {ort::float32_type}, {ort::uint8_type}, {ort::float32_type, true}, {ort::int8_type, true}};
    static constexpr size_t outputs = 1;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "rows", &rows_)) return status;
        return stored_.create(*api, info, "");
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor x, stored, scales, zeros, y;
        if (auto* status = ort::read(*api_, context, 0, x)) return status;
        if (auto* status = ort::read(*api_, context, 1, stored)) return status;
        if (auto* status = ort::read(*api_, context, 2, scales)) return status;
        if (auto* status = ort::read(*api_, context, 3, zeros)) return status;
        cpu::Weight weight{};
        if (x.sizes.empty() || !stored_.read(stored, scales, zeros, rows_, x.sizes.back(), weight)) {
            return api_->status(ort::invalid_argument, "Linear: expected x and a weight of one matrix");
        }
        int64_t count = 1;
        for (size_t i = 0; i + 1 < x.sizes.size(); ++i) count *= x.sizes[i];
        y.sizes = x.sizes;
        y.sizes.back() = weight.rows;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (count == 0 || weight.rows == 0) return nullptr;
        return multiply(context, {*kernels_, weight, count, stored_.is_exact()}, x.floats(),
                        static_cast<float*>(y.data));
    }

  private:
    ort::Status* multiply(ort::Context* context, cpu::Product product, const float* x, float* y) const {
        uint8_t* memory = input_memory.bytes(product.input_bytes());
        if (!memory) return api_->status(ort::fail, "Linear: expected memory for inputs, found none");
        product.use(memory);
        const int64_t count = product.count(), rows = product.weight().rows, columns = product.weight().columns;
        auto prepare = [&](int64_t task) {
            for (int64_t m = task * task_inputs; m < count && m < (task + 1) * task_inputs; ++m) {
                product.prepare(x + m * columns, m);
            }
        };
        if (auto* status = ort::spread_tasks(*api_, context, (count + task_inputs - 1) / task_inputs, prepare))
            return status;
        const int64_t size = product.task_rows(product.useful_tasks());
        auto run = [&](int64_t task) {
            const int64_t end = (task + 1) * size;
            product.run(y, task * size, end < rows ? end : rows);
        };
        return ort::spread_tasks(*api_, context, (rows + size - 1) / size, run);
    }

    cpu::StoredWeight stored_;
    int64_t rows_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::linear_op() { return ort::described<Linear>(); }
