// The contexts of a session, and the record of each. Contexts are made and destroyed at the worker;
// what is current is each thread's own (contexts.h). Thread-safety: any thread. Lock: one of each
// session's own, SessionContexts::mutex, above StreamIndex::mutex alone; a Context ends without it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace olpager::forward {

class Session;
struct Context;

class SessionContexts {
 public:
  explicit SessionContexts(Session& session);
  ~SessionContexts();

  /// From now on something is known of the context of this number, which ends with it. 0: of calls
  /// that were made in none.
  void know(uint64_t number) {
    std::lock_guard lock(mutex_);
    (void)at(number);
  }
  /// `use` gets the record, and is called under the mutex.
  template <typename Use>
  auto with(uint64_t number, Use use) {
    std::lock_guard lock(mutex_);
    return use(at(number));
  }
  /// Nothing where nothing is known.
  template <typename Use>
  void withKnown(uint64_t number, Use use) const {
    std::lock_guard lock(mutex_);
    if (const auto found = known_.find(number); found != known_.end()) use(*found->second);
  }

  /// The program has made it, or retained a primary one: it is there.
  void made(uint64_t number, CUdevice device);
  void retained(uint64_t primary);
  /// The program's count of a primary one goes down, or is none any more. Returns true if that
  /// count is 0 now.
  bool released(uint64_t primary, bool reset);
  /// The context is gone, and all that ends with it.
  void gone(uint64_t number);

  /// Those that are known to be there, the newest last: where a call is to be made that is not of
  /// the current context's session.
  std::vector<uint64_t> alive() const;
  uint64_t newest() const;  // 0: none
  /// The only one that is known to be there, green ones counted; 0: there are none, or several.
  uint64_t only() const;
  /// The program's device of one that it made; false: it is none of those.
  bool deviceOf(uint64_t number, CUdevice* device) const;

  // Green contexts.
  struct Green {
    CUdevice device = 0;
    uint64_t context = 0;  // that stands for it; 0: nobody has asked for it
  };
  void greenMade(uint64_t green, CUdevice device);
  /// False: it has been destroyed meanwhile.
  bool greenStandsFor(uint64_t green, uint64_t context);
  bool green(uint64_t number, Green* found) const;  // false: it is not known
  /// True if the program has retained the device's primary context, or has another green one of it.
  bool isKept(CUdevice device, uint64_t primary, uint64_t without_green) const;
  void greenGone(uint64_t green);
  /// The device of the green context that this one stands for; false: of none.
  bool greenDeviceOf(uint64_t context, CUdevice* device) const;
  bool hasGreens() const { return greens_.load(std::memory_order_relaxed) != 0; }

 private:
  Context& at(uint64_t number);

  Session& session_;
  mutable std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Context>> known_;
  std::map<uint64_t, CUdevice> device_of_;  // primary ones are known by their number
  std::vector<uint64_t> alive_;
  std::map<uint64_t, unsigned> retained_;  // primary ones: how often
  std::map<uint64_t, Green> green_;
  std::atomic<size_t> greens_{0};  // in `green_`; asked without the mutex
};

}  // namespace olpager::forward
