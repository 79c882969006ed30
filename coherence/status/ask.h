// Asks a daemon for its status: connects, asks until all sessions are told, disconnects.
//
// Thread-safety: one caller for each Asker. Blocks for at most connect_ms and answer_ms for each of
// its messages.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "coherence/status/status.h"
#include "coherence/transport/transport.h"

namespace olpager::status {

/// An answer, and the connection's facts about its giver.
struct Told {
  Status status;
  std::string node;       // as it calls itself
  std::string address;    // as asked for
  std::string transport;  // of the connection: "tcp", "shm"
};

/// Keeps its connection between questions, and makes it anew when it is lost.
class Asker {
 public:
  /// `answer_ms`: for each answer; to be connected, Options::connect_ms.
  static Result<std::unique_ptr<Asker>> make(transport::Options options, const std::string& address,
                                             uint32_t answer_ms = 5000);
  ~Asker();
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;
  Result<Told> ask();
  /// After a failed ask(): true if to ask again gives the same (as
  /// transport::ConnectOptions::lasts).
  bool lasts() const { return lasts_; }
  const std::string& address() const { return address_; }

 private:
  Asker(std::string address, uint32_t answer_ms)
      : address_(std::move(address)), answer_ms_(answer_ms) {}
  Result<Told> askOnce();
  void disconnect();

  const std::string address_;
  const uint32_t answer_ms_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::QueuePtr queue_;
  transport::LinkPtr link_;
  uint64_t number_ = 0;
  bool lasts_ = false;
};

}  // namespace olpager::status
