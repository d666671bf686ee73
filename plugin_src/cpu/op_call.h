// What the custom operators need around their kernels: tensors, threads, and the table that describes an operator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoints.h"
#include "kernel_table.h"
#include "ort_api.h"
#include "row_tokens.h"

namespace ort {

struct Tensor {
    std::vector<int64_t> sizes;
    void* data = nullptr;

    const float* floats() const { return static_cast<const float*>(data); }
    bool is(const std::vector<int64_t>& expected) const { return sizes == expected; }
    int64_t count() const {
        int64_t product = 1;
        for (int64_t size : sizes) product *= size;
        return product;
    }
    // Tokens [tokens, width] become [rows, time, width], or [1, tokens, width] where the rows differ; other sizes stay.
    void divide(int64_t rows, bool differ) {
        if (differ) rows = 1;
        if (sizes.size() == 2 && rows > 0 && sizes[0] % rows == 0) sizes = {rows, sizes[0] / rows, sizes[1]};
    }
};

// Input `index` of a call. An omitted one has no data.
inline Status* read(const Api& api, const Context* context, size_t index, Tensor& out) {
    const Value* value = nullptr;
    Shape* shape = nullptr;
    size_t rank = 0;
    if (auto* status = api.input(context, index, &value)) return status;
    if (!value) return nullptr;
    if (auto* status = api.shape(value, &shape)) return status;
    auto* status = api.rank(shape, &rank);
    if (!status) {
        out.sizes.resize(rank);
        status = api.sizes(shape, out.sizes.data(), rank);
    }
    api.release(shape);
    return status ? status : api.data(const_cast<Value*>(value), &out.data);
}

// The first inputs of a call.
template <size_t count>
Status* read_all(const Api& api, const Context* context, Tensor (&out)[count]) {
    for (size_t i = 0; i < count; ++i) {
        if (auto* status = read(api, context, i, out[i])) return status;
    }
    return nullptr;
}

// Output `index` of a call, of the sizes of `out`. One that was left out has no data.
inline Status* make(const Api& api, Context* context, size_t index, Tensor& out) {
    Value* value = nullptr;
    if (auto* status = api.output(context, index, out.sizes.data(), out.sizes.size(), &value)) return status;
    return value ? api.data(value, &out.data) : nullptr;
}

// The rows of a call on tokens [tokens, width] or [rows, time, width], from the input lengths [rows] or starts
// [rows + 1] of cpu::RowTokens, or without one. False if these do not fit.
inline bool rows_of(const Tensor& tokens, int64_t rows, const Tensor& given, cpu::RowTokens& out) {
    const auto* numbers = static_cast<const int32_t*>(given.data);
    if (tokens.sizes.size() == 2 && given.is({rows + 1})) {
        if (numbers[0] != 0 || numbers[rows] != tokens.sizes[0]) return false;
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t count = numbers[row + 1] - numbers[row];
            if (count < 0) return false;
            out.time = count > out.time ? count : out.time;
        }
        out.starts = numbers;
        return true;
    }
    if (tokens.sizes.size() < 2 || (given.data && !given.is({rows}))) return false;
    out.lengths = numbers;
    out.time = tokens.sizes.size() == 3 ? tokens.sizes[1] : rows ? tokens.sizes[0] / rows : 0;
    return true;
}

// Output `index`, the states after the numbers of tokens in input `input`; nothing where that was left out.
// past: the state [1, ...] of the call's only row, which has `time` tokens. False in `fits` if the numbers do not
// ascend from 1 to `time`, or there are numbers and several rows.
inline Status* make_checkpoints(const Api& api, Context* context, size_t input, size_t index, const Tensor& past,
                                int64_t time, bool& fits, cpu::Checkpoints& out) {
    Tensor lengths, states;
    if (auto* status = read(api, context, input, lengths)) return status;
    if (lengths.sizes.empty()) return nullptr;
    fits = lengths.sizes.size() == 1 && (past.sizes[0] == 1 || lengths.sizes[0] == 0);
    if (!fits) return nullptr;
    out.lengths = static_cast<const int32_t*>(lengths.data), out.count = lengths.sizes[0];
    for (int64_t n = 0, before = 0; n < out.count; before = out.lengths[n++]) {
        fits = fits && before < out.lengths[n] && out.lengths[n] <= time;
    }
    if (!fits) return nullptr;
    states.sizes = past.sizes, states.sizes[0] = out.count;
    auto* status = make(api, context, index, states);
    out.states = static_cast<float*>(states.data);
    return status;
}

// Calls run(task) for every task, on the session's threads if there are several.
template <class Run>
Status* spread_tasks(const Api& api, const Context* context, int64_t tasks, const Run& run) {
    if (tasks == 1) {
        run(0);
        return nullptr;
    }
    auto one = [](void* data, size_t task) { (*static_cast<const Run*>(data))(static_cast<int64_t>(task)); };
    return api.parallel_for(context, one, static_cast<size_t>(tasks), const_cast<Run*>(&run));
}

// Most tasks of one call: enough that threads finish together.
constexpr int64_t most_tasks = 16;

// Calls run(first, last) for ranges that cover 0 to count, which is positive. Each has about `least` of the call's
// `work` or more, which pays for the start of a thread.
template <class Run>
Status* spread_ranges(const Api& api, const Context* context, int64_t count, int64_t work, int64_t least,
                      const Run& run) {
    int64_t tasks = work / least + 1;
    if (tasks > most_tasks) tasks = most_tasks;
    if (tasks > count) tasks = count;
    const int64_t size = (count + tasks - 1) / tasks;
    return spread_tasks(api, context, (count + size - 1) / size, [&](int64_t task) {
        const int64_t first = task * size;
        run(first, first + size < count ? first + size : count);
    });
}

// An operator over the kernels of one instruction set.
class KernelOp {
  protected:
    // Chooses the kernels by the attribute `instructions` (cpu::Choice).
    Status* start(const Api* api, const Info* info, const std::string& operator_name) {
        api_ = api;
        int64_t choice = 0;
        if (auto* status = api->attribute(info, "instructions", &choice)) return status;
        kernels_ = cpu::chosen_kernels(choice);
        if (kernels_) return nullptr;
        return api->status(fail, (operator_name + ": expected instructions that this processor has").c_str());
    }

    const Api* api_ = nullptr;
    const cpu::Kernels* kernels_ = nullptr;
};

// The type of an output of class Op: as its `output_types` say, float32 without them.
template <class Op>
auto output_type(size_t index, int) -> decltype(Op::output_types[index]) {
    return Op::output_types[index];
}
template <class Op>
int output_type(size_t, long) {
    return float32_type;
}

// How many outputs of class Op may not be left out: as its `needed_outputs` say, all without them.
template <class Op>
auto needed_outputs(int) -> decltype(size_t(Op::needed_outputs)) {
    return Op::needed_outputs;
}
template <class Op>
size_t needed_outputs(long) {
    return Op::outputs;
}

// The table of class Op, which has `name`, the kinds of `inputs`, the number of `outputs`, create and compute.
template <class Op>
const CustomOp& described() {
    static const CustomOp op = [] {
        CustomOp made{};
        made.op_version = version;
        made.name = [](const CustomOp*) { return Op::name; };
        made.provider = [](const CustomOp*) -> const char* { return nullptr; };
        made.input_count = [](const CustomOp*) { return sizeof Op::inputs / sizeof *Op::inputs; };
        made.input_type = [](const CustomOp*, size_t index) { return Op::inputs[index].type; };
        made.input_kind = [](const CustomOp*, size_t index) { return Op::inputs[index].is_optional ? 1 : 0; };
        made.input_memory = [](const CustomOp*, size_t) { return 0; };
        made.output_count = [](const CustomOp*) { return Op::outputs; };
        made.output_type = [](const CustomOp*, size_t index) -> int { return output_type<Op>(index, 0); };
        made.output_kind = [](const CustomOp*, size_t index) { return index < needed_outputs<Op>(0) ? 0 : 1; };
        made.create_checked = [](const CustomOp*, const Api* api, const Info* info, void** out) -> Status* {
            auto op = std::make_unique<Op>();
            if (auto* status = op->create(api, info)) return status;
            *out = op.release();
            return nullptr;
        };
        made.compute_checked = [](void* kernel, Context* context) {
            return static_cast<Op*>(kernel)->compute(context);
        };
        made.destroy = [](void* kernel) { delete static_cast<Op*>(kernel); };
        return made;
    }();
    return op;
}

struct Input {
    int type;
    bool is_optional = false;
};

}  // namespace ort
