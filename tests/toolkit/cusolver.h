// Shared by the programs with cuSOLVER: a handle in a stream of its own.
#pragma once

#include <cusolverDn.h>

#include "toolkit.h"

namespace toolkit {

/// Runs body(handle, stream, hash), which returns a residual, and ends with "what, HASH" unless
/// that is `most` or more.
template <typename Body>
void withSolver(const char* name, const char* what, double most, Body body) {
  g_name = name;
  cusolverDnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
  MUST(cusolverDnCreate(&handle));
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cusolverDnSetStream(handle, stream));
  started();
  Hash hash;
  const double residual = body(handle, stream, hash);
  if (!(residual < most)) wrong("the residual is %g", residual);
  MUST(cusolverDnDestroy(handle));
  MUST(cudaStreamDestroy(stream));
  ok("%s, %016llx", what, hash.value());
}

}  // namespace toolkit
