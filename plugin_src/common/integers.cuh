// Integers of a fixed size, which NVRTC does not declare by itself.
#pragma once

#ifdef __CUDACC_RTC__
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif
