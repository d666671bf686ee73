// A weight among the inputs and attributes of an operator.
#pragma once

#include <string>

#include "linear.h"
#include "op_call.h"

namespace cpu {

// Attributes: type, scale_type (cpu::Type), group, block, exact (as Product).
class StoredWeight {
  public:
    // Reads the attributes, whose names begin with `prefix`.
    ort::Status* create(const ort::Api& api, const ort::Info* info, const std::string& prefix) {
        struct {
            const char* name;
            int64_t* value;
        } const attributes[] = {{"type", &type_}, {"scale_type", &scale_type_}, {"group", &group_},
                                {"block", &block_}, {"exact", &exact_}};
        for (auto [name, value] : attributes) {
            if (auto* status = api.attribute(info, (prefix + name).c_str(), value)) return status;
        }
        return nullptr;
    }

    bool is_exact() const { return exact_ != 0; }

    // The weight [rows, columns] in `stored` uint8, [rows, bytes] or [tiles, bytes], with `scales` float32: of e4m3
    // numbers [rows, groups], of tiles [rows, 1] or left out; `zeros` int8 of integers in tiles [tiles, groups * 16],
    // or left out. False where sizes or attributes do not fit each other.
    bool read(const ort::Tensor& stored, const ort::Tensor& scales, const ort::Tensor& zeros, int64_t rows,
              int64_t columns, Weight& out) const {
        if (stored.sizes.size() != 2 || !describe(rows, columns, out)) return false;
        const int64_t lines = out.is_tiled() ? pad(rows, tile_rows) / tile_rows : rows;
        if (!stored.is({lines, out.is_tiled() ? out.tile_bytes() : out.row_bytes()})) return false;
        if (scales.data ? !scales.is({rows, out.is_tiled() ? 1 : out.groups()}) : out.type == e4m3) return false;
        if (zeros.data && ((out.type != int4 && out.type != int8) || !zeros.is({lines, out.groups() * tile_rows})))
            return false;
        out.data = static_cast<const uint8_t*>(stored.data);
        out.scales = scales.floats(), out.zeros = static_cast<const int8_t*>(zeros.data);
        return true;
    }

  private:
    // Fills all but the addresses.
    bool describe(int64_t rows, int64_t columns, Weight& w) const {
        if (type_ < int4 || type_ > e4m3 || columns <= 0 || rows < 0) return false;
        w.type = static_cast<Type>(type_);
        w.rows = rows, w.columns = columns, w.group = w.block = columns;
        if (w.is_tiled() || w.type == e4m3) {
            if (group_ <= 0 || columns % group_) return false;
            w.group = group_;
        }
        if (!w.is_tiled()) return true;
        if (scale_type_ < float16 || scale_type_ > float32) return false;
        if ((block_ != 16 && block_ != 32 && block_ != 64 && block_ != 128) || group_ % block_) return false;
        w.scale_type = static_cast<Type>(scale_type_);
        w.block = block_;
        return true;
    }

    int64_t type_ = 0, scale_type_ = 0, group_ = 0, block_ = 0, exact_ = 0;
};

}  // namespace cpu
