// A session's answers that stay the same (class cached of the specification). The key is a call
// without its thread and the number of its wait: the function, the context and the arguments.
// Thread-safety: any thread. Lock: one of its own, above that of KernelAliases.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "interpose/api/driver_symbols.h"

namespace olpager::forward {

class AnswerCache {
 public:
  /// `record`: the call. False: there is no answer to it.
  bool find(const std::vector<std::byte>& record, std::vector<std::byte>* answer);
  void keep(const std::vector<std::byte>& record, const std::vector<std::byte>& answer);

  void forgetAll();
  void forgetOf(api::Symbol symbol);
  /// Those that `is` says: it is given the function (a symbol, or an Operation) and the arguments
  /// as they were written.
  void forgetIf(const std::function<bool(size_t function, std::string_view arguments)>& is);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<std::byte>> answers_;
};

}  // namespace olpager::forward
