// The daemon: accepts clients, starts a worker for each session, reaps them, and tells a client the
// fate of its session. One thread does all of it; the transport's threads only bring messages, and
// that of /metrics serves what was told last.
//
// A session: starting (its worker runs, the client waits for the answer) -> running -> ended (kept
// a while, to be asked for). A running one whose client has lost its link is kept for its grace
// time; where the client's process is of this machine and has ended it goes at once. A client that
// finds all places taken waits while one of them is such a session's.
//
// One address. Connections to workers come to the same one, with the session's number as their
// route; the listener's thread hands them over.
//
// VRAM. While several sessions use a device each gets a budget (shares.h), by what their workers
// report twice a second; it is set anew when they come, go, or want more or less. A session that
// was never beside another keeps what its pager found.
//
// RAM. Each session's host tier has a limit, an equal part of what all may have together; it is set
// anew when sessions come and go. One that grows gets only what its workers' reports say that
// others have given back: together they never have more.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "coherence/status/metrics.h"
#include "coherence/status/status.h"
#include "coherence/transport/routes.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/tls.h"
#include "forwarding/wire/session_protocol.h"
#include "gpunode/supervisor/devices.h"
#include "gpunode/supervisor/options.h"
#include "gpunode/supervisor/own_program.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {

/// Many members: one thread does everything, and what it does with
/// sessions, their shares and the figures goes over the same table.
class Supervisor {
 public:
  /// `worker`: the program; `library`: libolpager.so; `sim`: libolsimcuda.so, or "".
  Supervisor(const SupervisorOptions& options, std::string worker, std::string library,
             std::string sim);
  ~Supervisor();

  /// Before start(): for this program alone. Without a GPU there is no start; signals that tell to
  /// end are the program's to obey, as long as its process runs.
  void serveOnly(OwnProgram program) { program_ = std::move(program); }
  /// Listens. The Error is one line.
  Status start();
  const std::string& address() const { return listener_->address(); }
  /// Until SIGTERM or SIGINT, which the caller has blocked, or until the only program is gone. The
  /// exit status.
  int run();

 private:
  /// More members than most objects have: what its client asked for, its worker, and what it was
  /// last told are all that the daemon keeps of a session.
  // Many members: a row: all that is known of a session.
  struct Session {
    uint64_t id = 0;      // as its client names it; the route to its worker
    uint64_t number = 0;  // from 1
    pid_t pid = 0;
    uint64_t start_ticks = 0;  // of it
    uint32_t process = 0;      // the client's
    base::ExportableSetting exportable =
        base::ExportableSetting::kUnset;  // as its program wants it (OL_EXPORTABLE)
    uint32_t slot = 0, slots = 1;         // which of its program's sessions it is, of how many
    uint32_t beside = 0;                  // sessions that its program opens here beside it
    bool unified = false;                 // its handles mean the same in all of them
    forward::DriverEnvironment driver;    // what its program says to the driver
    std::string program, peer, node, key_name;
    std::string id_text;           // what the log says of it (base::LogAbout)
    bool left = false;             // the client has, before the worker was ready
    bool starting = true;          // the worker is not ready
    base::UniqueFd socket;         // to the worker
    base::UniqueFd process_ended;  // of a client on this machine: base::watchProcess
    bool client_dead = false;      // that has ended
    std::vector<uint32_t>
        devices;          // that it sees, as indices of devices_: what the worker calls 0, 1, ...
    WorkerReport report;  // the last one
    std::vector<uint64_t> budgets;  // by devices_, as ordered last; 0: none was
    uint64_t host_limit = 0;        // of its host tier, as ordered last
    transport::LinkPtr client;      // who waits for the answer
    forward::SessionReply reply;
    std::string ended;  // why; "" while it runs
    std::chrono::steady_clock::time_point since;
  };

  /// A client that would have a session if one that is without its client ended.
  struct Waiting {
    transport::LinkPtr client;
    forward::SessionRequest request;
    std::chrono::steady_clock::time_point until;
  };

  struct Client {
    std::chrono::steady_clock::time_point heard;
    bool closed = false;  // its kDown comes
  };

  /// Sessions that the program of `of` has told of, and has not opened yet.
  struct Expected {
    const Session* of = nullptr;
    size_t sessions = 0;
  };

  void take(transport::Completion& completion);
  void closeIdle(bool make_room);
  void open(const transport::LinkPtr& client, const forward::SessionRequest& request,
            bool has_waited = false);
  void wouldOpen(const transport::LinkPtr& client, const forward::SessionRequest& request);
  void tell(const transport::LinkPtr& client, const forward::SessionRequest& request);
  void answer(const transport::LinkPtr& client, std::span<const std::byte> question);
  status::Status state(uint64_t first, const transport::PeerInfo& asker);
  std::vector<status::Metric> metrics();
  void tellMetrics();
  void refuse(const transport::LinkPtr& client, const std::string& why);
  void ready(Session& session);
  size_t running() const;
  static bool hasLostClient(const Session& session);
  bool mayComeFree(const std::string& key_name) const;
  void openWaiting();
  void processEnded(Session& session);
  void endSessions();
  /// While something else is waited for: the signal stays for run() to take.
  bool toldToEnd();
  std::string inTheWay(const forward::SessionRequest& request,
                       const transport::PeerInfo& peer) const;
  uint32_t besideOf(const forward::SessionRequest& request) const;
  std::vector<Expected> expected(const Session* coming = nullptr) const;
  void hear(Session& session);
  void introduce(const Session& session, const ConnectionWanted& wanted);
  void reap();
  Status spawn(Session& session);
  Status findDevices();
  std::vector<std::string> workerEnvironment() const;
  base::LogLevel workersLogLevel() const;
  /// A device's VRAM to divide, and the most of it that a session may have.
  uint64_t vramToShare(size_t device) const;
  uint64_t mostVram(size_t device) const;
  void promiseVram(Session& session);
  void divideVram();
  void order(Session& session, size_t device, uint64_t budget);
  void findRam();
  /// The sum for the host tiers of all sessions.
  uint64_t ramToShare() const;
  /// `coming`: is not among the sessions yet; its limit is set, and the others are asked to make
  /// room.
  void divideRam(Session* coming = nullptr);
  void forgetOld();
  void removeSockets();

  const SupervisorOptions options_;
  const std::string worker_, library_, sim_;
  OwnProgram program_;
  std::unique_ptr<transport::Endpoint> node_;
  transport::QueuePtr queue_;
  const transport::RoutesPtr routes_ = std::make_shared<transport::Routes>();  // to the workers
  std::unique_ptr<transport::Listener> listener_;
  base::UniqueFd signals_;
  std::map<uint64_t, Session> sessions_;
  std::map<transport::LinkPtr, Client> clients_;  // all links
  uint32_t most_links_ = 0;
  std::vector<Waiting> waiting_;
  uint64_t next_number_ = 1, refused_ = 0, ended_ = 0, failed_ = 0, ended_calls_ = 0,
           ended_moved_ = 0;
  std::optional<std::chrono::steady_clock::time_point> sockets_due_;  // of workers that were killed
  transport::Secret secret_{};  // the values that the sessions of each key share follow from it
  std::string cache_;           // the folder with a folder for each key; "": none
  Devices devices_;
  std::string no_devices_ = "its driver has no GPU";  // or why none are known
  bool measured_ = false;                             // by NVML
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now(), looked_{},
                                        divided_{}, told_{};
  uint64_t ram_ = 0, most_ram_ = 0;  // of all sessions together; of each
  bool ram_changed_ = false;         // a worker has another limit than before
  std::chrono::steady_clock::time_point ram_divided_{};
  std::mutex metrics_mutex_;
  std::string metrics_text_;  // under it
  std::unique_ptr<status::MetricsEndpoint> metrics_endpoint_;
};

}  // namespace olpager::gpunode
