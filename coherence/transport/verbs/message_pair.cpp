#include "coherence/transport/verbs/message_pair.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "base/format.h"
#include "coherence/transport/core/own_descriptors.h"

namespace olpager::transport::verbs {
namespace {

constexpr uint32_t kPoolPieces = 512;
constexpr uint32_t kInline = 192;  // a frame's header and a short message
// 0.64 ms, in the card's own steps: how long a sender waits for whom there is no piece.
constexpr uint8_t kNoPieceTimer = 12;

}  // namespace

// ---- memory

Result<std::unique_ptr<Pieces>> Pieces::make(const Api& api, ibv_pd* domain, uint32_t count) {
  std::unique_ptr<Pieces> pieces(new Pieces(api, count));
  const size_t length = size_t{count} * kBytes;
  void* const base =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return failed("no memory for messages");
  pieces->base_ = static_cast<std::byte*>(base);
  // A child of the program's must not take the pages that the card writes to.
  madvise(base, length, MADV_DONTFORK);
  pieces->region_ = (api.ibv_reg_mr)(domain, base, length, IBV_ACCESS_LOCAL_WRITE);
  if (pieces->region_ == nullptr) return failed("memory for messages can't be registered");
  return pieces;
}

Pieces::~Pieces() {
  if (region_ != nullptr) api_.ibv_dereg_mr(region_);
  if (base_ != nullptr) munmap(base_, size_t{count_} * kBytes);
}

// ---- where messages arrive

Result<std::shared_ptr<MessagePool>> MessagePool::on(const Api& api, ibv_context* card) {
  static std::mutex mutex;
  static auto& pools = *new std::map<ibv_context*, std::weak_ptr<MessagePool>>;
  std::lock_guard lock(mutex);
  auto& place = pools[card];
  if (auto pool = place.lock()) return pool;
  std::shared_ptr<MessagePool> pool(new MessagePool(api));
  if (auto status = pool->open(card); !status.ok()) return status.error();
  place = pool;
  return pool;
}

Status MessagePool::open(ibv_context* card) {
  domain_ = api_.ibv_alloc_pd(card);
  if (domain_ == nullptr) return failed("no protection domain");
  ibv_device_attr about{};
  if (api_.ibv_query_device(card, &about) != 0) return failed("the card says nothing of itself");
  const auto count = std::min(kPoolPieces, static_cast<uint32_t>(std::max(about.max_srq_wr, 0)));
  auto pieces = Pieces::make(api_, domain_, std::max(count, 1u));
  if (!pieces.ok()) return pieces.error();
  pieces_ = std::move(pieces.value());
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = pieces_->count();
  wanted.attr.max_sge = 1;
  receives_ = api_.ibv_create_srq(domain_, &wanted);
  if (receives_ == nullptr) return failed("no shared receive queue");
  for (uint64_t i = 0; i < pieces_->count(); ++i) {
    if (!giveBack(i)) return failed("no receive request");
  }
  return {};
}

MessagePool::~MessagePool() {
  if (receives_ != nullptr) api_.ibv_destroy_srq(receives_);
  pieces_.reset();
  if (domain_ != nullptr) api_.ibv_dealloc_pd(domain_);
}

bool MessagePool::giveBack(uint64_t piece) {
  ibv_sge place = pieces_->place(piece, Pieces::kBytes);
  ibv_recv_wr request{};
  request.wr_id = piece;
  request.sg_list = &place;
  request.num_sge = 1;
  ibv_recv_wr* refused = nullptr;
  return ibv_post_srq_recv(receives_, &request, &refused) == 0;
}

// ---- one link's

Result<std::unique_ptr<MessagePair>> MessagePair::make(const Api& api, rdma_cm_id* id) {
  std::unique_ptr<MessagePair> pair(new MessagePair(api));
  if (auto status = pair->open(id); !status.ok()) return status.error();
  return pair;
}

Status MessagePair::open(rdma_cm_id* id) {
  auto pool = MessagePool::on(api_, id->verbs);
  if (!pool.ok()) return pool.error();
  pool_ = std::move(pool.value());
  auto pieces = Pieces::make(api_, pool_->domain(), kPieces);
  if (!pieces.ok()) return pieces.error();
  pieces_ = std::move(pieces.value());
  for (uint64_t i = 0; i < kPieces; ++i) free_.push_back(i);
  events_ = api_.ibv_create_comp_channel(id->verbs);
  if (events_ == nullptr) return failed("no completion channel");
  noteOwnDescriptor(events_->fd);
  fcntl(events_->fd, F_SETFL, fcntl(events_->fd, F_GETFL) | O_NONBLOCK);
  sent_ = api_.ibv_create_cq(id->verbs, kPieces, nullptr, events_, 0);
  // All that the pool has room for may arrive here.
  arrived_ = api_.ibv_create_cq(id->verbs, kPoolPieces + 1, nullptr, events_, 0);
  if (sent_ == nullptr || arrived_ == nullptr) return failed("no completion queue");
  if (ibv_req_notify_cq(arrived_, 0) != 0) return failed("no events of the completion queue");
  arrived_armed_.store(true);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = sent_;
  wanted.recv_cq = arrived_;
  wanted.srq = pool_->receives();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = kPieces;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_inline_data = kInline;
  if (api_.rdma_create_qp(id, pool_->domain(), &wanted) != 0) {
    wanted.cap.max_inline_data = 0;  // not every card has any
    if (api_.rdma_create_qp(id, pool_->domain(), &wanted) != 0) return failed("no queue pair");
  }
  inline_bytes_ = wanted.cap.max_inline_data;
  pair_ = id->qp;
  return {};
}

MessagePair::~MessagePair() {
  if (sent_ != nullptr) api_.ibv_destroy_cq(sent_);
  if (arrived_ != nullptr) api_.ibv_destroy_cq(arrived_);
  if (events_ != nullptr) {
    forgetOwnDescriptor(events_->fd);
    api_.ibv_destroy_comp_channel(events_);
  }
}

// Before the queue pair goes: some cards forget then what is in its completion queue.
void MessagePair::end() {
  if (pair_ == nullptr) return;
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  api_.ibv_modify_qp(pair_, &error, IBV_QP_STATE);
  broken_ = true;
  ibv_wc done[32];
  for (int count = 0; (count = ibv_poll_cq(arrived_, 32, done)) > 0;) {
    for (int i = 0; i < count; ++i) {
      if (pool_->holds(done[i].wr_id)) pool_->giveBack(done[i].wr_id);
    }
  }
}

void MessagePair::settle() {
  // The connection manager's own is 655 ms. A card that does not change it is a slow one, no more.
  ibv_qp_attr wanted{};
  wanted.min_rnr_timer = kNoPieceTimer;
  api_.ibv_modify_qp(pair_, &wanted, IBV_QP_MIN_RNR_TIMER);
}

void MessagePair::takeSent() {
  ibv_wc done[kPieces];
  const int count = ibv_poll_cq(sent_, kPieces, done);
  if (count < 0) broken_ = true;
  for (int i = 0; i < count; ++i) {
    if (done[i].status != IBV_WC_SUCCESS) broken_ = true;
    if (broken_) continue;
    free_.push_back(done[i].wr_id);
    arrived_there_ += posted_.front().length;
    posted_.pop_front();
  }
}

MessagePair::Unsure MessagePair::unsure() {
  takeSent();
  Unsure all{arrived_there_, {}};
  for (const Posted& each : posted_) {
    const std::byte* const bytes = pieces_->at(each.piece);
    all.bytes.insert(all.bytes.end(), bytes, bytes + each.length);
  }
  return all;
}

bool MessagePair::reap() {
  takeSent();
  return broken_ || free_.size() == kPieces;
}

bool MessagePair::post(std::span<const std::byte> bytes, size_t& done) {
  done = 0;
  bool armed = false;
  if (broken_) return false;
  while (done < bytes.size()) {
    if (free_.empty()) takeSent();
    if (broken_) return false;
    if (free_.empty()) {
      if (armed) break;
      // One that completes between the look above and here does not ring: one more look.
      sent_armed_.store(true);
      broken_ = ibv_req_notify_cq(sent_, 0) != 0;
      if (broken_) return false;
      armed = true;
      continue;
    }
    const uint64_t piece = free_.back();
    const auto length =
        static_cast<uint32_t>(std::min<size_t>(bytes.size() - done, Pieces::kBytes));
    std::memcpy(pieces_->at(piece), bytes.data() + done, length);
    ibv_sge place = pieces_->place(piece, length);
    ibv_send_wr request{}, *refused = nullptr;
    request.wr_id = piece;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED | (length <= inline_bytes_ ? IBV_SEND_INLINE : 0);
    broken_ = ibv_post_send(pair_, &request, &refused) != 0;
    if (broken_) return false;
    free_.pop_back();
    posted_.push_back({piece, length});
    done += length;
  }
  return true;
}

int MessagePair::take(const std::function<void(std::span<const std::byte>)>& each,
                      std::string& why) {
  ibv_wc done[32];
  const int count = ibv_poll_cq(arrived_, 32, done);
  if (count < 0) why = "the card's completions can't be read";
  for (int i = 0; i < count; ++i) {
    const bool good = done[i].status == IBV_WC_SUCCESS;
    if (!good) {
      why = base::format("the queue pair of messages: {}", api_.ibv_wc_status_str(done[i].status));
    }
    if (!pool_->holds(done[i].wr_id)) continue;
    if (good && why.empty()) each(pool_->arrived(done[i].wr_id, done[i].byte_len));
    if (!pool_->giveBack(done[i].wr_id)) why = "the card takes no receive requests";
  }
  return why.empty() ? count : -1;
}

bool MessagePair::arm() {
  // A ring comes once for each time that it was asked for. A queue that can bring nothing is not
  // called.
  ibv_cq* of = nullptr;
  void* context = nullptr;
  while ((sent_armed_.load() || arrived_armed_.load()) &&
         api_.ibv_get_cq_event(events_, &of, &context) == 0) {
    api_.ibv_ack_cq_events(of, 1);
    (of == sent_ ? sent_armed_ : arrived_armed_).store(false);
  }
  return arrived_armed_.exchange(true) || ibv_req_notify_cq(arrived_, 0) == 0;
}

}  // namespace olpager::transport::verbs
