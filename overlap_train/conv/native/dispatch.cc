// Which of the compiled instruction sets this machine runs.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace overlap_train::conv {

#define OT_DECLARE(isa)                                      \
  namespace isa {                                            \
  const KernelTable<float>& FloatKernels();                  \
  const KernelTable<double>& DoubleKernels();                \
  inline const auto& Get(float) { return FloatKernels(); }   \
  inline const auto& Get(double) { return DoubleKernels(); } \
  }

OT_DECLARE(portable)
#ifdef OT_HAVE_X86
OT_DECLARE(avx2)
OT_DECLARE(avx512)
#endif

namespace {

template <class T>
const KernelTable<T>& Choose() {
  const char* const wanted = std::getenv("OVERLAP_TRAIN_CONV_ISA");
  const auto takes = [wanted](const char* name) {
    return wanted == nullptr || *wanted == '\0' || std::strcmp(wanted, name) == 0;
  };
#ifdef OT_HAVE_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && takes("avx512")) return avx512::Get(T());
  if (avx2 && takes("avx2")) return avx2::Get(T());
#else
  (void)takes;
#endif
  return portable::Get(T());
}

}  // namespace

template <class T>
const KernelTable<T>& Kernels() {
  static const KernelTable<T>& table = Choose<T>();
  return table;
}

template const KernelTable<float>& Kernels<float>();
template const KernelTable<double>& Kernels<double>();

}  // namespace overlap_train::conv
