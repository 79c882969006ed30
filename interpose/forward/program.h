// The one root of forwarded mode in a program: all state that is neither constant nor a thread's
// own is reached from here. Nothing is torn down by a list of calls: an object ends, and with it
// all that it owns.
//
//   Program       lives with the process. Members of Program are there from the start, without an
//                 initialization, and are atomics: what each call looks at costs one load.
//   ProgramParts  one for the process, made at first need: what concerns all sessions.
//   Session       one for each gpunode (session.h), made by sessions.cpp. SessionParts
//                 (session_parts.h) is what the client knows of the session's objects.
//   WhileThere    of a session (session_parts.h): what ends when the session is lost.
//   Context       of a session, one for each context that something is known of (context.h). The
//                 code that sees a context go drops its object: state that ends with a context is a
//                 member there.
//
// Program, ProgramParts, Session and SessionParts are never destroyed: exit handlers, and threads
// that outlive them, still call. A forked child keeps ProgramParts and has no session
// (sessions.cpp).
//
// Thread-safety: any thread. Locks: locks.h lists them. Program's own members need none, and each
// part has its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "interpose/api/driver_symbols.h"

namespace olpager::api {
class ManagedAdvice;
}  // namespace olpager::api

namespace olpager::status {
struct LinksCounters;
}  // namespace olpager::status

namespace olpager::forward {

class Session;
class Window;
struct BlockTable;
struct CommonKernels;
struct Connecting;
struct Couriers;
struct DeviceList;
struct DriverTables;
struct ExportedDescriptors;
struct KeptTexts;
struct KernelAliases;
class KnownKernels;
struct LogListeners;
struct Notifications;
struct ParameterLayouts;
struct PeerLinks;
struct SetAttributes;
struct TakenLaunches;
struct ThreadNumbers;

inline constexpr unsigned kMostSessions = 16;

/// The state that all sessions share. Each part is described in its own header.
struct ProgramParts {
  ProgramParts();
  ~ProgramParts();
  ProgramParts(const ProgramParts&) = delete;
  ProgramParts& operator=(const ProgramParts&) = delete;

  const std::unique_ptr<Connecting> connecting;            // sessions.h
  const std::unique_ptr<DeviceList> devices;               // devices.h
  const std::unique_ptr<DriverTables> driver_tables;       // driver_tables.h
  const std::unique_ptr<ThreadNumbers> threads;            // threads.h
  const std::unique_ptr<Couriers> couriers;                // couriers.h
  const std::unique_ptr<Notifications> notifications;      // notifications.h
  const std::unique_ptr<LogListeners> listeners;           // logs.h
  const std::unique_ptr<KeptTexts> texts;                  // call.h
  const std::unique_ptr<ParameterLayouts> layouts;         // launch.h
  const std::unique_ptr<TakenLaunches> taken_launches;     // launch.h
  const std::unique_ptr<KnownKernels> known_kernels;       // known_kernels.h
  const std::unique_ptr<CommonKernels> common_kernels;     // libraries.h
  const std::unique_ptr<KernelAliases> kernel_aliases;     // kernel_attributes.h
  const std::unique_ptr<SetAttributes> set_attributes;     // kernel_attributes.h
  const std::unique_ptr<Window> window;                    // window.h
  const std::unique_ptr<BlockTable> blocks;                // block_table.h
  const std::unique_ptr<api::ManagedAdvice> advice;        // api/managed_advice.h
  const std::unique_ptr<ExportedDescriptors> descriptors;  // export_descriptors.h
  const std::unique_ptr<PeerLinks> peer_links;             // straight_copies.h

  /// Counts what means the same in all sessions: libraries and kernels where there are several, and
  /// in the unified view all that the program makes.
  std::atomic<uint64_t> common_numbers;
};

/// Copies between devices of two gpunodes that went one way.
struct CopyCount {
  std::atomic<uint64_t> copies{0}, bytes{0};
  void add(uint64_t more) { copies.fetch_add(1), bytes.fetch_add(more); }
};

class Program {
 public:
  constexpr Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // The sessions: the first `session_count`, written before it.
  std::array<Session*, kMostSessions> sessions{};
  std::atomic<uint32_t> session_count{0};
  // In the unified view: the session whose all handles are, whatever slot is in their numbers. Null
  // in the discrete view.
  std::atomic<Session*> unified{nullptr};
  std::atomic<bool> forked{false};                        // from a process that had called cuInit
  std::atomic<size_t> capturing{0};                       // streams that capture, in all sessions
  std::atomic<uint32_t> calling_threads{0};               // that have called and have not ended
  std::atomic<void* (*)(api::Symbol)> exported{nullptr};  // symbols.h
  // The counters of links' bytes, and the function that finds them (counted_links.h).
  std::atomic<status::LinksCounters*> links{nullptr};
  std::atomic<status::LinksCounters& (*)()> links_source{nullptr};
  // Told at the end of every program.
  CopyCount copies_over_tcp, copies_over_shm, copies_through_here;

  ProgramParts& parts() {
    ProgramParts* const made = parts_.load(std::memory_order_acquire);
    return made != nullptr ? *made : makeParts();
  }

 private:
  ProgramParts& makeParts();

  std::once_flag making_;
  std::atomic<ProgramParts*> parts_{nullptr};
};

namespace detail {
extern Program g_program;
}
inline Program& program() { return detail::g_program; }

}  // namespace olpager::forward
