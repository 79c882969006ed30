#include "coherence/transport/verbs/queue_pairs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "coherence/transport/core/own_descriptors.h"

namespace olpager::transport::verbs {
namespace {

constexpr uint32_t kMostRequests = 512;
constexpr uint32_t kMostParts = 16;
constexpr uint32_t kMostReads = 16;
constexpr int kWaiting = 256;  // queue pairs that nobody has looked at yet
// With 7 some cards never give up.
constexpr uint8_t kRetries = 6;
// For a peer that is there and has no piece for a message: as long as it takes.
constexpr uint8_t kForEver = 7;

std::span<const uint8_t> proved(const Ticket& ticket) {
  return {reinterpret_cast<const uint8_t*>(&ticket), offsetof(Ticket, mac)};
}

Secret proofOf(const LinkSecrets& secrets, const Ticket& ticket) {
  constexpr uint8_t kWhat[] = {'q', 'u', 'e', 'u', 'e', ' ', 'p', 'a', 'i', 'r'};
  return mac(secrets.ticket, kWhat, proved(ticket));
}

void unblock(int fd) {
  noteOwnDescriptor(fd);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// A card waits 4.096 us * 2^exponent, up to four times as long, for each of its tries.
uint8_t timeoutExponent(uint32_t dead_ms) {
  const uint64_t each_ns = uint64_t{dead_ms} * 1'000'000 / (uint64_t{4} * (kRetries + 1));
  uint8_t exponent = 8;
  while (exponent < 20 && (uint64_t{4096} << (exponent + 1)) <= each_ns) ++exponent;
  return exponent;
}

}  // namespace

Ticket makeTicket(const LinkSecrets& secrets, const LinkId& id, uint32_t rail, uint32_t which) {
  Ticket ticket;
  std::copy(id.begin(), id.end(), ticket.link_id);
  ticket.which = which;
  ticket.rail = rail;
  const Secret proof = proofOf(secrets, ticket);
  std::copy(proof.begin(), proof.end(), ticket.mac);
  return ticket;
}

bool checkTicket(const LinkSecrets& secrets, const Ticket& ticket) {
  return ticket.which <= kMessages && ticket.rail < kMostRails &&
         sameSecret(proofOf(secrets, ticket), ticket.mac);
}

Secret answerTicket(const LinkSecrets& secrets, const Ticket& ticket) {
  constexpr uint8_t kWhat[] = {'q', 'u', 'e', 'u', 'e', ' ', 'p', 'a',
                               'i', 'r', ' ', 'r', 'e', 'p', 'l', 'y'};
  return mac(secrets.ticket, kWhat, {reinterpret_cast<const uint8_t*>(&ticket), sizeof ticket});
}

QueuePairs::~QueuePairs() {
  if (windows_) windows_->end();
  if (messages_) messages_->end();
  for (rdma_cm_id* const id : ids_) {
    if (id == nullptr) continue;
    if (id->qp != nullptr) {
      api_.rdma_disconnect(id);
      api_.rdma_destroy_qp(id);
    }
    api_.rdma_destroy_id(id);
  }
  messages_.reset();
  if (completions_ != nullptr) api_.ibv_destroy_cq(completions_);
  if (events_ != nullptr) {
    forgetOwnDescriptor(events_->fd);
    api_.ibv_destroy_comp_channel(events_);
  }
  if (channel_ != nullptr) {
    forgetOwnDescriptor(channel_->fd);
    api_.rdma_destroy_event_channel(channel_);
  }
}

Status QueuePairs::openChannel() {
  if (channel_ != nullptr) return {};
  channel_ = api_.rdma_create_event_channel();
  if (channel_ == nullptr) return failed("no event channel");
  unblock(channel_->fd);
  return {};
}

// Makes the queue pair on what is bound to a card; the first one says which card it is.
Status QueuePairs::open(uint32_t which, rdma_cm_id* id) {
  if (which == kMessages) return openMessages(id);
  ibv_context* const context = id->verbs;
  if (context == nullptr) return Error{"the connection is on no card"};
  if (!card_) {
    auto domain = domainOn(api_, *domain_, context);
    if (!domain.ok()) return domain.error();
    ibv_device_attr about{};
    if (api_.ibv_query_device(context, &about) != 0)
      return failed("the card says nothing of itself");
    sizes_.requests =
        std::min({kMostRequests, static_cast<uint32_t>(about.max_qp_wr),
                  static_cast<uint32_t>(about.max_cqe) / static_cast<uint32_t>(kClasses)});
    sizes_.parts = std::min(kMostParts, static_cast<uint32_t>(about.max_sge));
    if (about.max_sge_rd > 0)
      sizes_.parts = std::min(sizes_.parts, static_cast<uint32_t>(about.max_sge_rd));
    const int reads = std::min(about.max_qp_rd_atom, about.max_qp_init_rd_atom);
    reads_ = static_cast<uint8_t>(std::clamp<int>(reads, 1, kMostReads));
    events_ = api_.ibv_create_comp_channel(context);
    if (events_ == nullptr) return failed("no completion channel");
    unblock(events_->fd);
    completions_ = api_.ibv_create_cq(context, static_cast<int>(sizes_.requests * kClasses),
                                      nullptr, events_, 0);
    if (completions_ == nullptr) return failed("no completion queue");
    if (ibv_req_notify_cq(completions_, 0) != 0) return failed("no events of the completion queue");
    card_ = domain.value();
    windows_ = std::make_shared<Windows>(card_);
  }
  if (card_->get()->context != context)
    return Error{"the queue pairs of a link are on different cards"};
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions_;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = sizes_.requests;
  wanted.cap.max_recv_wr = 1;
  wanted.cap.max_send_sge = sizes_.parts;
  wanted.cap.max_recv_sge = 1;
  if (api_.rdma_create_qp(id, card_->get(), &wanted) != 0) return failed("no queue pair");
  limitTries(id);
  return {};
}

Status QueuePairs::openMessages(rdma_cm_id* id) {
  if (id->verbs == nullptr) return Error{"the connection is on no card"};
  auto made = MessagePair::make(api_, id);
  if (!made.ok()) return made.error();
  messages_ = std::move(made.value());
  limitTries(id);
  return {};
}

void QueuePairs::limitTries(rdma_cm_id* id) const {
  uint8_t exponent = timeoutExponent(dead_ms_);
  // Before librdmacm 22 there is no such option: the path's own time holds.
  api_.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent, sizeof exponent);
}

rdma_conn_param QueuePairs::parameters(uint32_t which) const {
  rdma_conn_param parameters{};
  parameters.responder_resources = parameters.initiator_depth = reads_;
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = which == kMessages ? kForEver : kRetries;
  return parameters;
}

// All of them at once: a connection takes several round trips.
Status QueuePairs::connect(const SocketAddress& local, const SocketAddress& peer,
                           const LinkSecrets& secrets, const LinkId& link,
                           const Patience& patience) {
  if (auto status = openChannel(); !status.ok()) return status;
  SocketAddress from = withPort(local, 0), to = peer;
  const auto limit_ms = [&] {
    return static_cast<int>(std::max<int64_t>(patience.until() - nowMs(), 1));
  };
  for (uint32_t i = 0; i < count_; ++i) {
    if (api_.rdma_create_id(channel_, &ids_[i], nullptr, RDMA_PS_TCP) != 0)
      return failed("no connection of the card");
    if (api_.rdma_resolve_addr(ids_[i], reinterpret_cast<sockaddr*>(&from.storage),
                               reinterpret_cast<sockaddr*>(&to.storage), limit_ms()) != 0) {
      return failed("the card finds no address");
    }
  }
  for (uint32_t connected = 0; connected != count_;) {
    rdma_cm_event* event = nullptr;
    if (api_.rdma_get_cm_event(channel_, &event) != 0) {
      if (errno != EAGAIN) return failed("the card's connections");
      if (!waitFor(channel_->fd, POLLIN, patience.until()))
        return Error{"the card has not connected in time"};
      continue;
    }
    const auto type = event->event;
    const int why = event->status;
    rdma_cm_id* const id = event->id;
    Secret reply{};
    if (type == RDMA_CM_EVENT_ESTABLISHED && event->param.conn.private_data_len >= reply.size())
      std::memcpy(reply.data(), event->param.conn.private_data, reply.size());
    api_.rdma_ack_cm_event(event);
    const auto which =
        static_cast<uint32_t>(std::find(ids_.begin(), ids_.end(), id) - ids_.begin());
    if (which >= count_) continue;
    const Ticket ticket = verbs::makeTicket(secrets, link, rail_, which);
    if (type == RDMA_CM_EVENT_ADDR_RESOLVED) {
      if (api_.rdma_resolve_route(id, limit_ms()) != 0) return failed("the card finds no route");
    } else if (type == RDMA_CM_EVENT_ROUTE_RESOLVED) {
      if (auto status = open(which, id); !status.ok()) return status;
      rdma_conn_param wanted = parameters(which);
      wanted.private_data = &ticket;
      wanted.private_data_len = sizeof ticket;
      if (api_.rdma_connect(id, &wanted) != 0) return failed("the card does not connect");
    } else if (type == RDMA_CM_EVENT_ESTABLISHED) {
      if (!sameSecret(reply, answerTicket(secrets, ticket)))
        return Error{"a queue pair was answered by somebody else"};
      ++connected;
    } else {
      return Error{
          base::format("the card does not connect: {} ({})", api_.rdma_event_str(type), why)};
    }
  }
  return {};
}

Status QueuePairs::accept(rdma_cm_id* id, const Ticket& ticket, const LinkSecrets& secrets,
                          const rdma_conn_param& offered) {
  ids_[ticket.which] = id;
  if (auto status = open(ticket.which, id); !status.ok()) return status;
  const Secret reply = answerTicket(secrets, ticket);
  rdma_conn_param wanted = parameters(ticket.which);
  wanted.responder_resources = std::min(wanted.responder_resources, offered.responder_resources);
  wanted.initiator_depth = std::min(wanted.initiator_depth, offered.initiator_depth);
  wanted.private_data = reply.data();
  wanted.private_data_len = static_cast<uint8_t>(reply.size());
  if (api_.rdma_accept(id, &wanted) != 0) return failed("the card does not accept");
  return {};
}

bool QueuePairs::owns(const rdma_cm_id* id) const {
  return std::find(ids_.begin(), ids_.end(), id) != ids_.end();
}

Status QueuePairs::settle() {
  if (auto status = openChannel(); !status.ok()) return status;
  for (rdma_cm_id* const id : ids_) {
    if (id == nullptr) continue;
    if (api_.rdma_migrate_id(id, channel_) != 0) return failed("the card's events");
  }
  return {};
}

bool QueuePairs::nextConnectionEvent(std::string& ended) {
  rdma_cm_event* event = nullptr;
  if (api_.rdma_get_cm_event(channel_, &event) != 0) return false;
  const auto type = event->event;
  api_.rdma_ack_cm_event(event);
  const bool harmless = type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_TIMEWAIT_EXIT;
  ended = harmless ? "" : api_.rdma_event_str(type);
  return true;
}

bool QueuePairs::portIsDown() const {
  ibv_port_attr port{};
  const rdma_cm_id& id = *ids_.front();
  // By name: its header has it as a macro that needs the library.
  const int error =
      (api_.ibv_query_port)(id.verbs, id.port_num, reinterpret_cast<_compat_ibv_port_attr*>(&port));
  return error != 0 || port.state < IBV_PORT_ACTIVE;
}

void QueuePairs::halt() {
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  for (rdma_cm_id* const id : ids_) {
    if (id != nullptr && id->qp != nullptr) api_.ibv_modify_qp(id->qp, &error, IBV_QP_STATE);
  }
}

Result<std::unique_ptr<QueuePairListener>> QueuePairListener::make(const SocketAddress& address) {
  const Api* const all = verbs::api();
  if (all == nullptr) return Error{whyNot()};
  std::unique_ptr<QueuePairListener> listener(new QueuePairListener(*all));
  SocketAddress any_port = withPort(address, 0);
  listener->channel_ = all->rdma_create_event_channel();
  if (listener->channel_ == nullptr) return failed("no RDMA: no event channel");
  unblock(listener->channel_->fd);
  if (all->rdma_create_id(listener->channel_, &listener->id_, nullptr, RDMA_PS_TCP) != 0 ||
      all->rdma_bind_addr(listener->id_, reinterpret_cast<sockaddr*>(&any_port.storage)) != 0 ||
      all->rdma_listen(listener->id_, kWaiting) != 0) {
    return failed("no RDMA: no card listens");
  }
  return listener;
}

QueuePairListener::~QueuePairListener() {
  if (id_ != nullptr) api_.rdma_destroy_id(id_);
  if (channel_ != nullptr) {
    forgetOwnDescriptor(channel_->fd);
    api_.rdma_destroy_event_channel(channel_);
  }
}

uint16_t QueuePairListener::port() const { return ntohs(api_.rdma_get_src_port(id_)); }

bool QueuePairListener::next(Event& event) {
  rdma_cm_event* said = nullptr;
  if (api_.rdma_get_cm_event(channel_, &said) != 0) return false;
  event = {};
  event.type = said->event;
  event.id = said->id;
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    event.offered = said->param.conn;
    if (said->param.conn.private_data_len >= sizeof event.ticket) {
      std::memcpy(&event.ticket, said->param.conn.private_data, sizeof event.ticket);
    }
  }
  event.offered.private_data = nullptr;
  api_.rdma_ack_cm_event(said);
  return true;
}

void QueuePairListener::refuse(rdma_cm_id* id) {
  api_.rdma_reject(id, nullptr, 0);
  api_.rdma_destroy_id(id);
}

}  // namespace olpager::transport::verbs
