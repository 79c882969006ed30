// The daemon: accepts clients, starts a worker for each session, reaps them, and tells a client what became of its own. One thread
// does all of it; the transport's threads only bring messages.
//
// A session: starting (its worker runs, the client waits for the answer) -> running -> ended (kept a while, to be asked for).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "base/fd.h"
#include "coherence/transport/transport.h"
#include "gpunode/supervisor/options.h"
#include "interpose/forward/session_protocol.h"

namespace olpager::gpunode {

class Supervisor {
 public:
  /// `worker`: the program; `library`: libolpager.so; `sim`: libolsimcuda.so, or "".
  Supervisor(const SupervisorOptions& options, std::string worker, std::string library, std::string sim);
  ~Supervisor();

  /// Listens. The Error is one line.
  Status start();
  const std::string& address() const { return listener_->address(); }
  /// Until SIGTERM or SIGINT, which the caller has blocked. The exit status.
  int run();

 private:
  struct Session {
    uint64_t id = 0;
    pid_t pid = 0;
    std::string program, peer, key_name;
    bool left = false;          // the client has, before the worker was ready
    base::UniqueFd setup;       // until the worker is ready
    transport::LinkPtr client;  // who waits for the answer
    forward::SessionReply reply;
    std::string ended;  // why; "" while it runs
    std::chrono::steady_clock::time_point since;
  };

  void take(transport::Completion& completion);
  void open(const transport::LinkPtr& client, const forward::SessionRequest& request);
  void wouldOpen(const transport::LinkPtr& client, const forward::SessionRequest& request);
  void tell(const transport::LinkPtr& client, const forward::SessionRequest& request);
  void list(const transport::LinkPtr& client, const forward::SessionRequest& request);
  void refuse(const transport::LinkPtr& client, const std::string& why);
  void ready(Session& session);
  size_t running() const;
  std::string inTheWay(const forward::SessionRequest& request) const;
  void reap();
  Status spawn(Session& session, const std::string& host);
  void forgetOld();

  const SupervisorOptions options_;
  const std::string worker_, library_, sim_;
  std::unique_ptr<transport::Endpoint> node_;
  transport::QueuePtr queue_;
  std::unique_ptr<transport::Listener> listener_;
  base::UniqueFd signals_;
  std::map<uint64_t, Session> sessions_;
};

}  // namespace olpager::gpunode
