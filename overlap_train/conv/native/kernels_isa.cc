// The kernels of one instruction set and type. CMake compiles this file once for each: OT_ISA names the
// namespace, OT_DOUBLE asks for double instead of float.
#include "depthwise_filter_gradient.h"
#include "direct_filter_gradient.h"
#include "direct_forward.h"
#include "epilogue_gradient.h"
#include "kernels.h"
#include "winograd_filter_gradient.h"
#include "winograd_forward.h"

#define OT_STRINGIFY(name) #name
#define OT_NAME(name) OT_STRINGIFY(name)

namespace overlap_train::conv::OT_ISA {

template <class T>
constexpr KernelTable<T> kTable = {OT_NAME(OT_ISA),
                                   RunDirectForward<T>,
                                   RunDirectInputGradient<T>,
                                   RunDirectFilterGradient<T>,
                                   RunWinogradForward<T>,
                                   RunWinogradInputGradient<T>,
                                   RunWinogradFilterGradient<T>,
                                   RunEpilogueGradient<T>,
                                   RunDepthwiseFilterGradient<T>};

#ifdef OT_DOUBLE
const KernelTable<double>& DoubleKernels() { return kTable<double>; }
#else
const KernelTable<float>& FloatKernels() { return kTable<float>; }
#endif

}  // namespace overlap_train::conv::OT_ISA
