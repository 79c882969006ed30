// Memory that this session's program has exported, by what the driver exports it as (a descriptor,
// which never leaves the gpunode), and the thread that hands that to the workers of other sessions
// of the same key. And the other way: what another worker, or this one, has exported.
// Thread-safety: any thread. Lock: mutex_, a leaf. Errors: CUDA's, with a line in the log.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "coherence/transport/trust/tls.h"
#include "forwarding/wire/export_token.h"

namespace olpager::gpunode {

class Exports {
 public:
  /// `group`: what the workers of the same key's sessions have in common, and no other. Before all
  /// else.
  void configure(const transport::Secret& group) { group_ = group; }

  /// Keeps the descriptor until it is removed, and names it.
  CUresult add(base::UniqueFd descriptor, forward::ExportToken* token);
  void remove(uint32_t number);
  size_t size() const;

  /// Takes the memory that a token names: here, or in another worker, which is waited for some
  /// seconds at most.
  CUresult take(const forward::ExportToken& token, base::UniqueFd* descriptor);

  static constexpr size_t kMost = size_t{1} << 16;

 private:
  struct Export {
    forward::ExportToken token;
    base::UniqueFd descriptor;
  };
  CUresult startServing();
  void serveAll(int listening);
  void serve(int peer);
  CUresult ask(const forward::ExportToken& token, base::UniqueFd* descriptor) const;
  base::UniqueFd found(const forward::ExportToken& token) const;

  transport::Secret group_{};
  mutable std::mutex mutex_;
  uint64_t socket_ = 0;
  uint32_t next_ = 1;
  std::map<uint32_t, Export> exports_;
};

}  // namespace olpager::gpunode
