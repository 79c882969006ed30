// ClockOrder: two doubly linked rings of units, each with a hand.
#include "pager/predict/predict.h"

namespace olpager::predict {

void ClockOrder::link(Unit unit, Queue queue) {
  Node& node = nodes_[unit];
  node.in = queue;
  Ring& ring = ringOf(node);
  if (ring.size++ == 0) {
    node.next = node.previous = ring.hand = unit;
    return;
  }
  // Just behind the hand: the last that it comes to.
  node.next = ring.hand;
  node.previous = nodes_[ring.hand].previous;
  nodes_[node.previous].next = unit;
  nodes_[ring.hand].previous = unit;
}

void ClockOrder::unlink(Unit unit) {
  Node& node = nodes_[unit];
  Ring& ring = ringOf(node);
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
  if (ring.hand == unit) ring.hand = node.next;
  --ring.size;
  node.in = Queue::kNone;
}

void ClockOrder::insert(Unit unit) {
  if (contains(unit)) {
    touch(unit);
    return;
  }
  if (unit >= nodes_.size()) nodes_.resize(std::max<size_t>(unit + 1, nodes_.size() * 2));
  Node& node = nodes_[unit];
  ++clock_;
  const bool soon = node.been && clock_ - node.credited_at <= 2 * size();
  node.credit = 0;
  node.credited_at = clock_;
  link(unit, soon ? Queue::kMain : Queue::kNewcomers);
}

void ClockOrder::erase(Unit unit) {
  if (!contains(unit)) return;
  unlink(unit);
  nodes_[unit].been = true;
  nodes_[unit].credited_at = clock_;
}

void ClockOrder::touch(Unit unit) {
  if (!contains(unit)) return;
  ++clock_;
  Node& node = nodes_[unit];
  if (clock_ - node.credited_at <= size() / 8) return;
  node.credited_at = clock_;
  if (node.credit < kMaxCredit) ++node.credit;
}

}  // namespace olpager::predict
