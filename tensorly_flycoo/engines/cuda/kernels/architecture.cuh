// The oldest GPU that the kernels compile for.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "compute capability 8.0 or higher: kernels use cp.async and double-precision tensor cores"
#endif
