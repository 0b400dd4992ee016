// A CPU that runs GPU kernels, made to find their mistakes. Each file one idea, each building on those before:
//   fiber       a thread of the GPU: a flow of control with its own stack
//   numbers     16-bit floats
//   clocks      who knows of whose deeds
//   arithmetic  sums of small matrices
//   block       whose turn it is; how a mistake ends a launch
//   shared      shared memory: bounds, alignment, races
//   warp        what 32 lanes do together: shuffles, votes, matrices
//   copies      cp.async
//   barriers    __syncthreads, numbered barriers, barriers in shared memory
//   bulk_copies TMA (sm_90): what it brings
//   bulk_sums   what it adds to global memory
//   turns       how blocks wait for each other
//   operands    matrices that descriptors name (sm_90)
//   products    asynchronous products of warpgroups (sm_90)
//   tensor_memory, tensor_products   memory of the tensor cores, and products on it (sm_100)
//   registers   what warps hand back and ask for (sm_90)
//   faults      wild pointers
//   launch      kernels, grids, machines
// `emulate.cpp` holds the C interface.
#pragma once
#include "copies.h"
#include "launch.h"
