// The custom operator `Linear` of the domain hybridge.cpu.
//
// Inputs: x float32 [..., columns]; weight uint8, [rows, bytes] or [tiles, bytes]; scales float32, of e4m3 numbers
// [rows, groups], of tiles [rows, 1] or left out (cpu::Weight). Output: float32 [..., rows].
// Attributes: rows, type, scale_type (cpu::Type), group, block, exact: inputs of a weight in tiles are rounded to 8 bits
// by blocks unless exact; instructions (cpu::Choice).
#include <cstdlib>
#include <memory>

#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

using cpu::Weight;

// Tasks of one product: enough that threads finish together, each large enough to pay for its start.
constexpr int64_t most_tasks = 16, task_bytes = 1 << 16;

struct FreeMemory {
    void operator()(uint8_t* p) const { std::free(p); }
};

// Memory of one thread, 64-byte aligned, which only grows.
class Memory {
  public:
    uint8_t* bytes(int64_t count) {
        if (count > size_) {
            memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(cpu::pad(count, 64)))));
            size_ = memory_ ? count : 0;
        }
        return memory_.get();
    }

  private:
    std::unique_ptr<uint8_t, FreeMemory> memory_;
    int64_t size_ = 0;
};

thread_local Memory input_memory;

struct Product {
    const cpu::Kernels& kernels;
    const Weight& weight;
    const float* x;
    float* y;
    int64_t count, task_rows;
    bool rounds, uses_panels;
    cpu::Rounded rounded;
    float* arranged = nullptr;

    void prepare_inputs(size_t task) {
        int64_t first = static_cast<int64_t>(task) * 16, last = first + 16 < count ? first + 16 : count;
        for (int64_t m = first; m < last; ++m) {
            const float* input = x + m * weight.columns;
            if (rounds) {
                kernels.round(weight, input, m, rounded);
            } else if (uses_panels) {
                kernels.pack(input, weight.columns, m, count, arranged);
            } else {
                kernels.arrange(weight, input, arranged + m * cpu::pad(weight.columns, cpu::dot_columns));
            }
        }
    }

    void run(size_t task) {
        int64_t first = static_cast<int64_t>(task) * task_rows;
        int64_t last = first + task_rows < weight.rows ? first + task_rows : weight.rows;
        if (rounds) return kernels.rounded(weight, rounded, y, first, last);
        (uses_panels ? kernels.panels : kernels.dots)(weight, arranged, count, y, first, last);
    }
};

class Linear {
  public:
    static constexpr const char* name = "Linear";
    static constexpr ort::Input inputs[] = {{ort::float32_type}, {ort::uint8_type}, {ort::float32_type, true}};
    static constexpr size_t outputs = 1;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        api_ = api;
        int64_t choice = 0;
        struct {
            const char* name;
            int64_t* value;
        } const attributes[] = {{"rows", &rows_},   {"type", &type_},   {"scale_type", &scale_type_},
                                {"group", &group_}, {"block", &block_}, {"exact", &exact_},
                                {"instructions", &choice}};
        for (auto [name, value] : attributes) {
            if (auto* status = api->attribute(info, name, value)) return status;
        }
        kernels_ = cpu::chosen_kernels(choice);
        return kernels_ ? nullptr : api->status(ort::fail, "Linear: expected instructions that this processor has");
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor x, stored, scales, y;
        if (auto* status = ort::read(*api_, context, 0, x)) return status;
        if (auto* status = ort::read(*api_, context, 1, stored)) return status;
        if (auto* status = ort::read(*api_, context, 2, scales)) return status;
        Weight weight{};
        if (x.sizes.empty() || stored.sizes.size() != 2 || !describe(weight, x.sizes.back(), stored.sizes) ||
            !(scales.data ? scales.is({rows_, weight.is_tiled() ? 1 : weight.groups()}) : weight.type != cpu::e4m3)) {
            return api_->status(ort::invalid_argument, "Linear: expected x and a weight of one matrix");
        }
        weight.data = static_cast<const uint8_t*>(stored.data);
        weight.scales = scales.floats();
        int64_t count = 1;
        for (size_t i = 0; i + 1 < x.sizes.size(); ++i) count *= x.sizes[i];
        y.sizes = x.sizes;
        y.sizes.back() = weight.rows;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (count == 0 || weight.rows == 0) return nullptr;
        return multiply(context, weight, x.floats(), static_cast<float*>(y.data), count);
    }

  private:
    // Fills all but the addresses; false where the sizes or attributes do not fit each other.
    bool describe(Weight& w, int64_t columns, const std::vector<int64_t>& sizes) const {
        if (type_ < cpu::int4 || type_ > cpu::e4m3 || columns <= 0 || rows_ < 0) return false;
        w.type = static_cast<cpu::Type>(type_);
        w.rows = rows_, w.columns = columns, w.group = w.block = columns;
        if (w.type == cpu::e4m3) {
            if (group_ <= 0 || columns % group_) return false;
            w.group = group_;
        }
        if (!w.is_tiled()) return sizes[0] == rows_ && sizes[1] == w.row_bytes();
        if (scale_type_ < cpu::float16 || scale_type_ > cpu::float32) return false;
        if (block_ != 16 && block_ != 32 && block_ != 64 && block_ != 128) return false;
        if (group_ <= 0 || columns % group_ || group_ % block_) return false;
        w.scale_type = static_cast<cpu::Type>(scale_type_);
        w.group = group_, w.block = block_;
        return sizes[0] * cpu::tile_rows == cpu::pad(rows_, cpu::tile_rows) && sizes[1] == w.tile_bytes();
    }

    ort::Status* multiply(ort::Context* context, const Weight& w, const float* x, float* y, int64_t count) const {
        const bool rounds = w.is_tiled() && !exact_;
        const bool uses_panels = !rounds && (w.is_tiled() || count >= kernels_->panel_inputs);
        Product product{*kernels_, w, x, y, count, 0, rounds, uses_panels, {}};
        if (auto* status = prepare(context, product)) return status;
        // Whole tiles and panels, in tasks of about equal size.
        int64_t unit = cpu::tile_rows;
        if (uses_panels && kernels_->panel_rows > unit) unit = kernels_->panel_rows;
        int64_t units = cpu::pad(w.rows, unit) / unit;
        int64_t wanted = uses_panels || count > 1 ? most_tasks : w.rows * w.row_bytes() / task_bytes + 1;
        int64_t tasks = wanted < most_tasks ? wanted : most_tasks;
        product.task_rows = (units + tasks - 1) / tasks * unit;
        auto run = [](void* data, size_t task) { static_cast<Product*>(data)->run(task); };
        int64_t used = (w.rows + product.task_rows - 1) / product.task_rows;
        return ort::spread(*api_, context, run, used, &product);
    }

    // Rounds, packs or arranges the inputs of `product`.
    ort::Status* prepare(ort::Context* context, Product& product) const {
        const Weight& w = product.weight;
        const int64_t count = product.count, stride = cpu::pad(w.columns, cpu::dot_columns);
        uint8_t* memory = input_memory.bytes(count * (product.rounds ? stride + 8 * w.blocks() : 4 * stride));
        if (!memory) return api_->status(ort::fail, "Linear: expected memory for inputs, found none");
        if (product.rounds) {
            product.rounded.numbers = reinterpret_cast<int8_t*>(memory);
            product.rounded.scales = reinterpret_cast<float*>(memory + count * stride);
            product.rounded.offsets = reinterpret_cast<int32_t*>(product.rounded.scales + count * w.blocks());
            product.rounded.count = count;
        } else {
            product.arranged = reinterpret_cast<float*>(memory);
        }
        auto prepare = [](void* data, size_t task) { static_cast<Product*>(data)->prepare_inputs(task); };
        return ort::spread(*api_, context, prepare, (count + 15) / 16, &product);
    }

    const ort::Api* api_ = nullptr;
    const cpu::Kernels* kernels_ = nullptr;
    int64_t rows_ = 0, type_ = 0, scale_type_ = 0, group_ = 0, block_ = 0, exact_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::linear_op() { return ort::described<Linear>(); }
