// conv_cuda.cu under the emulator, for machines without a GPU.
#include "conv_cuda.cu"
