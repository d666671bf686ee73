// Memory of one thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "linear.h"

namespace cpu {

// 64-byte aligned; it only grows.
class Memory {
  public:
    // Null where there is not enough.
    uint8_t* bytes(int64_t count) {
        if (count > size_) {
            memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(pad(count, 64)))));
            size_ = memory_ ? count : 0;
        }
        return memory_.get();
    }

  private:
    struct Free {
        void operator()(uint8_t* p) const { std::free(p); }
    };

    std::unique_ptr<uint8_t, Free> memory_;
    int64_t size_ = 0;
};

}  // namespace cpu
