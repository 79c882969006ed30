#include "coherence/status/ask.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace olpager::status {
namespace {

using Clock = std::chrono::steady_clock;
using transport::Completion;

}  // namespace

Result<std::unique_ptr<Asker>> Asker::make(transport::Options options, const std::string& address,
                                           uint32_t answer_ms) {
  options.lanes = 1;
  options.io_threads = 1;
  auto endpoint = transport::makeEndpoint(options);
  if (!endpoint.ok()) return endpoint.error();
  std::unique_ptr<Asker> asker(new Asker(address, answer_ms));
  asker->endpoint_ = std::move(endpoint.value());
  return asker;
}

Asker::~Asker() { disconnect(); }

void Asker::disconnect() {
  if (link_) link_->close("its question is answered");
  link_.reset();
  queue_.reset();
}

// A connection that was kept may have been lost meanwhile.
Result<Told> Asker::ask() {
  const bool kept = link_ != nullptr;
  auto told = askOnce();
  if (told.ok()) return told;
  disconnect();
  if (!kept) return told;
  told = askOnce();
  if (!told.ok()) disconnect();
  return told;
}

Result<Told> Asker::askOnce() {
  lasts_ = false;
  if (!link_) {
    queue_ = endpoint_->makeQueue();
    auto link = endpoint_->connect(
        address_,
        {.domain = transport::makeDomain(), .queue = queue_, .replaces = "", .lasts = &lasts_});
    if (!link.ok()) return link.error();
    link_ = link.value();
  }
  Told told;
  told.address = address_;
  told.node = link_->peer().node;
  told.transport = transport::linkKindName(link_->peer().kind);
  for (uint64_t first = 0;;) {
    const uint64_t number = ++number_;
    if (link_->send(transport::MessageClass::kRequest, encode(Question{number, first})) !=
        transport::Outcome::kOk)
      return Error{address_ + ": it can't be asked: " + link_->reason()};
    const auto until = Clock::now() + std::chrono::milliseconds(answer_ms_);
    Completion completion;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - Clock::now());
      // Completions that came while this thread did not run are there.
      if (queue_->wait({&completion, 1}, std::max(left, left.zero())) != 1)
        return Error{address_ + ": no answer within " + std::to_string(answer_ms_) + " ms"};
      if (completion.kind == Completion::Kind::kDown)
        return Error{address_ + ": no answer: " + link_->reason()};
      if (completion.kind == Completion::Kind::kMessage) break;
    }
    auto answer = decodeAnswer(completion.message.bytes());
    if (!answer.ok()) return Error{address_ + ": " + answer.error().message};
    Status& status = answer.value().status;
    if (answer.value().number != number) return Error{address_ + ": it answers another question"};
    auto& sessions = told.status.sessions;
    sessions.insert(sessions.end(), std::make_move_iterator(status.sessions.begin()),
                    std::make_move_iterator(status.sessions.end()));
    const uint64_t next = status.next;
    // A daemon that is wrong may go on for ever.
    if (sessions.size() > kMaxSessions || (next > first && status.sessions.empty()))
      return Error{address_ + ": it tells of sessions without end"};
    status.sessions = std::move(sessions);
    told.status = std::move(status);
    if (next <= first) break;
    first = next;
  }
  told.status.next = 0;
  return told;
}

}  // namespace olpager::status
