// ClockOrder: a doubly linked ring of units with a hand.
#include "pager/predict/predict.h"

namespace olpager::predict {

void ClockOrder::insert(Unit unit) {
  if (contains(unit)) {
    touch(unit);
    return;
  }
  if (unit >= nodes_.size()) nodes_.resize(std::max<size_t>(unit + 1, nodes_.size() * 2));
  Node& node = nodes_[unit];
  node = Node{};
  node.in = true;
  node.credited_at = ++clock_;
  if (size_++ == 0) {
    node.next = node.previous = hand_ = unit;
    return;
  }
  // Just behind the hand: the last that it comes to.
  node.next = hand_;
  node.previous = nodes_[hand_].previous;
  nodes_[node.previous].next = unit;
  nodes_[hand_].previous = unit;
}

void ClockOrder::erase(Unit unit) {
  if (!contains(unit)) return;
  Node& node = nodes_[unit];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
  if (hand_ == unit) hand_ = node.next;
  node.in = false;
  --size_;
}

void ClockOrder::touch(Unit unit) {
  if (!contains(unit)) return;
  ++clock_;
  Node& node = nodes_[unit];
  // Touches that follow one another closely are one use.
  if (clock_ - node.credited_at <= size_ / 8) return;
  node.credited_at = clock_;
  if (node.credit < kMaxCredit) ++node.credit;
}

}  // namespace olpager::predict
