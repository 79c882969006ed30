#include "interpose/unified/page_link.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/held_signals.h"
#include "coherence/calls/greeting.h"
#include "coherence/transport/transport.h"

namespace olpager::unified {
namespace {

using namespace std::chrono_literals;
using Read = calls::Channel::Read;

constexpr auto kSlice = 500ms;
constexpr auto kGreeting = 5s;
constexpr auto kFirst = 12s;  // to reach the worker, as a session's own link
constexpr std::chrono::milliseconds kRetry = 50ms;

}  // namespace

struct PageLinks::Link {
  const unsigned executor;
  PageRoute route;
  std::unique_ptr<transport::Endpoint> node;
  transport::DomainPtr domain = transport::makeDomain();
  std::string last;  // the last link's id
  calls::Channel channel;
  std::mutex order;  // in which records are taken and written
  std::atomic<bool> up{false}, lost{false};
  std::thread thread;

  explicit Link(unsigned number) : executor(number) {}
  Status join();
  Status joinWithin(std::chrono::milliseconds time, const std::atomic<bool>& closing);
};

PageLinks::PageLinks(Home& home, unsigned executors, Hearer hearer)
    : home_(home), hearer_(std::move(hearer)) {
  for (unsigned i = 0; i < executors; ++i) links_.push_back(std::make_unique<Link>(i));
}

PageLinks::~PageLinks() { close(); }

Status PageLinks::Link::join() {
  auto queue = node->makeQueue();
  auto link = node->connect(route.gpunode, {domain, queue, last, route.session});
  if (!link.ok()) return link.error();
  auto heard = calls::greet(*link.value(), *queue, channel.taken(), kGreeting);
  if (!heard.ok()) return heard.error();
  last = link.value()->id();
  return channel.attach(link.value(), queue, heard.value());
}

Status PageLinks::Link::joinWithin(std::chrono::milliseconds time,
                                   const std::atomic<bool>& closing) {
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    Status joined = join();
    if (joined.ok() || closing || channel.closed() || std::chrono::steady_clock::now() > end)
      return joined;
    std::this_thread::sleep_for(kRetry);
  }
}

Status PageLinks::open(unsigned executor, const PageRoute& route) try {
  Link& link = *links_[executor];
  link.route = route;
  transport::Options options = route.options;
  options.keys =
      std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{route.key});
  auto node = transport::makeEndpoint(options);
  if (!node.ok()) return node.error();
  link.node = std::move(node.value());
  if (Status joined = link.joinWithin(kFirst, closing_); !joined.ok())
    return Error{"the link of pages: " + joined.error().message};
  link.up = true;
  link.thread = base::ownThread([this, &link] { listen(link); });
  return {};
} catch (const std::exception& error) {
  return Error{std::string("the link of pages: ") + error.what()};
}

void PageLinks::lose(Link& link, const std::string& why) {
  link.up = false;
  link.channel.close(why);
  if (link.lost.exchange(true) || closing_) return;
  if (hearer_.lost) hearer_.lost(link.executor, why);
}

void PageLinks::listen(Link& link) {
  std::vector<std::byte> record;
  const auto count = [this, &link] {
    status::LinkBytes* const counted = hearer_.counted ? hearer_.counted(link.executor) : nullptr;
    if (counted != nullptr) link.channel.count(*counted, false);
  };
  auto counted = std::chrono::steady_clock::now();
  struct AtEnd {  // what came last, too
    decltype(count)& call;
    ~AtEnd() { call(); }
  } const at_end{count};
  while (!closing_ && !link.lost) {
    if (const auto now = std::chrono::steady_clock::now(); now - counted >= kSlice) {
      counted = now;
      count();
    }
    switch (link.channel.read(record, kSlice)) {
      case Read::kRecord:
        if (const Status heard = home_.receive(link.executor, record); !heard.ok())
          return lose(link, heard.error().message);
        flush();
        if (hearer_.heard) hearer_.heard();
        break;
      case Read::kNothing:
        (void)link.channel.flush();  // what was taken
        break;
      case Read::kDown: {
        if (closing_) return;
        const Status again =
            link.joinWithin(std::chrono::milliseconds(link.route.grace_ms), closing_);
        if (!again.ok()) return lose(link, "the link of pages: " + again.error().message);
        break;
      }
    }
  }
}

// The thread that takes a record writes it before another is taken.
void PageLinks::push(Link& link) {
  const std::lock_guard order(link.order);
  bool any = false;
  for (;;) {
    const std::vector<std::byte> record = home_.take(link.executor);
    if (record.empty()) break;
    if (!link.channel.write({record})) return;  // it is lost: its thread says so
    any = true;
  }
  if (any) (void)link.channel.flush();
}

void PageLinks::flush() {
  if (!home_.hasRecords()) return;
  for (const auto& link : links_)
    if (link->up) push(*link);
}

void PageLinks::close() {
  if (closing_.exchange(true)) return;
  for (const auto& link : links_) {
    link->channel.close("the program ends");
    if (link->thread.joinable()) link->thread.join();
  }
}

}  // namespace olpager::unified
