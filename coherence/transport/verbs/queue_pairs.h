// The queue pairs of one rail of a link, one for each class, so that no class waits behind another
// in a queue: on one card, with one completion queue and one event channel for them all. Messages
// have another one (message_pair.h), on the first rail, where they need not be encrypted.
//
// How a pair comes to them: the acceptor listens at a port of librdmacm's beside its own, and says
// so in its Hello. The connector connects each queue pair there with a ticket made from the link's
// secret, which the acceptor checks before it makes anything, and answers with a proof of its own.
// Nothing of memory is said here: keys go by the link's first connection.
//
// Thread-safety: one thread at a time until the link is made of it; then VerbsLink's locks.
#pragma once

#include <array>
#include <memory>

#include "coherence/transport/core/endpoint.h"
#include "coherence/transport/verbs/card.h"
#include "coherence/transport/verbs/message_pair.h"
#include "coherence/transport/verbs/windows.h"

namespace olpager::transport::verbs {

/// The payload of a connection request: the owner of the queue pair. librdmacm has no room for
/// more.
struct Ticket {
  uint8_t link_id[16] = {};
  uint32_t which = 0;  // a Class, or kMessages
  uint32_t rail = 0;
  uint8_t mac[32] = {};  // HMAC-SHA256 over "queue pair" and what is before it
};
static_assert(sizeof(Ticket) == 56);
inline constexpr uint32_t kMessages = kClasses;
Ticket makeTicket(const LinkSecrets& secrets, const LinkId& id, uint32_t rail, uint32_t which);
bool checkTicket(const LinkSecrets& secrets, const Ticket& ticket);
/// The acceptor's proof.
Secret answerTicket(const LinkSecrets& secrets, const Ticket& ticket);

class QueuePairs {
 public:
  struct Sizes {
    uint32_t requests = 0;  // of one queue pair, outstanding
    uint32_t parts = 0;     // of one request
  };

  /// `tls`: what the link encrypts.
  QueuePairs(const Api& api, DomainPtr domain, uint32_t dead_ms, Tls tls, uint32_t rail = 0)
      : api_(api),
        domain_(std::move(domain)),
        dead_ms_(dead_ms),
        rail_(rail),
        count_(tls == Tls::kOff && rail == 0 ? kMessages + 1 : kMessages) {}
  /// Ends them all: afterwards the card touches no memory for this link, on either side's behalf.
  ~QueuePairs();
  QueuePairs(const QueuePairs&) = delete;
  QueuePairs& operator=(const QueuePairs&) = delete;

  /// Connects all of them to the peer's listener; `local`: the address of the card to use.
  Status connect(const SocketAddress& local, const SocketAddress& peer, const LinkSecrets& secrets,
                 const LinkId& id, const Patience& patience);
  /// Accepts one: `id` belongs to this from now on. `offered`: what the request said.
  Status accept(rdma_cm_id* id, const Ticket& ticket, const LinkSecrets& secrets,
                const rdma_conn_param& offered);
  uint32_t rail() const { return rail_; }
  /// The acceptor's: one more is connected; whether all of them are.
  void established() { ++established_; }
  bool complete() const { return established_ == count_; }
  /// True if this one is still to be connected.
  bool lacks(uint32_t which) const { return which < count_ && ids_[which] == nullptr; }
  bool owns(const rdma_cm_id* id) const;
  /// Takes accepted pairs away from the listener's event channel. All of them are connected.
  Status settle();

  ibv_qp* of(Class klass) const { return ids_[index(klass)]->qp; }
  ibv_cq* completions() const { return completions_; }
  ibv_comp_channel* events() const { return events_; }
  /// Null where messages take another way.
  MessagePair* messages() const { return messages_.get(); }
  int connectionEvents() const { return channel_->fd; }
  /// Takes the next event of the connections; false: none is there. The text says what ended them,
  /// or is "".
  bool nextConnectionEvent(std::string& ended);
  const std::shared_ptr<CardDomain>& card() const { return card_; }
  const std::shared_ptr<Windows>& windows() const { return windows_; }
  /// The card's port has no connection now, or the card does not say. One call into the driver.
  bool portIsDown() const;
  const char* cardName() const { return card_->get()->context->device->name; }
  /// The port of the card that the queue pairs use.
  uint8_t port() const { return ids_[0]->port_num; }
  const Sizes& sizes() const { return sizes_; }
  /// No peer's transfer and none of this side's begins any more.
  void halt();

 private:
  static constexpr size_t index(Class klass) { return static_cast<size_t>(klass); }
  Status openChannel();
  Status open(uint32_t which, rdma_cm_id* id);
  Status openMessages(rdma_cm_id* id);
  void limitTries(rdma_cm_id* id) const;
  rdma_conn_param parameters(uint32_t which) const;

  const Api& api_;
  const DomainPtr domain_;
  const uint32_t dead_ms_;
  const uint32_t rail_;
  const uint32_t count_;
  uint32_t established_ = 0;
  rdma_event_channel* channel_ = nullptr;
  std::shared_ptr<CardDomain> card_;
  std::shared_ptr<Windows> windows_;
  ibv_comp_channel* events_ = nullptr;
  ibv_cq* completions_ = nullptr;
  std::array<rdma_cm_id*, kMessages + 1> ids_{};
  std::unique_ptr<MessagePair> messages_;
  Sizes sizes_;
  uint8_t reads_ = 1;  // that a queue pair has under way, either way
};

/// Accepts the connections of peers' queue pairs.
class QueuePairListener {
 public:
  /// At the address, and any port.
  static Result<std::unique_ptr<QueuePairListener>> make(const SocketAddress& address);
  ~QueuePairListener();
  QueuePairListener(const QueuePairListener&) = delete;
  QueuePairListener& operator=(const QueuePairListener&) = delete;

  uint16_t port() const;
  int fd() const { return channel_->fd; }
  struct Event {
    rdma_cm_event_type type = RDMA_CM_EVENT_CONNECT_ERROR;
    rdma_cm_id* id = nullptr;
    Ticket ticket;  // of a request; zeros where it had none
    rdma_conn_param offered{};
  };
  /// False: there is none.
  bool next(Event& event);
  /// Refuses a request that nobody has accepted.
  void refuse(rdma_cm_id* id);
  const Api& api() const { return api_; }

 private:
  explicit QueuePairListener(const Api& api) : api_(api) {}
  const Api& api_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
};

}  // namespace olpager::transport::verbs
