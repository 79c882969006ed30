// The client's record of one context. Made at first need and owned by SessionContexts, which drops
// it when the context is gone: destroyed, reset, or released for the last time. State that ends
// with a context is a member here, and ends in its own destructor. A primary context that comes
// again has the same number and another object.
//
// Used under SessionContexts' mutex; ends without any lock, as destructors below take some.
#pragma once

#include <cstdint>
#include <memory>

#include "interpose/forward/allocation_book.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/context_failures.h"
#include "interpose/forward/crossings.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {

struct Context {
  Context(const SessionParts& session, uint64_t number)
      : failures(*session.failures),
        streams(*session.streams, number),
        captures(session, number),
        memory(*session.book, number) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ContextFailures failures;
  StreamsOfContext streams;    // the program's
  CapturesOfContext captures;  // of streams in it
  MemoryOfContext memory;      // that was allocated in it
  // The library's own; who uses one gives it back while these are there.
  const std::shared_ptr<IdleStreams> idle_streams = std::make_shared<IdleStreams>();
};

}  // namespace olpager::forward
