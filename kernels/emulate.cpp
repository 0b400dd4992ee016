// The emulator as a library: all kernels, behind its C interface.
#include "vocabulary/gpu.h"
#include "emulator/interface.h"
#include "entries.cu"
