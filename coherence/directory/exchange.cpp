#include "coherence/directory/exchange.h"

#include <utility>

namespace olpager::directory {

/// Makes a step of the home, puts what it sends into the inboxes, and wakes their agents.
template <typename Step>
void Exchange::home(Step&& step) {
  std::lock_guard lock(mutex_);
  step();
  for (const Action& action : actions_) {
    if (action.kind != ActionKind::kSend) {
      news_.push_back(action);
      continue;
    }
    Inbox& inbox = inboxes_[action.message.to];
    if (!inbox.open) continue;
    inbox.messages.push_back(action.message);
    // Once: what has not been taken yet will be.
    if (inbox.messages.size() == 1) inbox.wake();
  }
  actions_.clear();
}

void Exchange::join(AgentId agent, std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  home_.join(agent);
  inboxes_[agent] = {.messages = {}, .wake = std::move(wake), .open = true};
}

Age Exchange::operation(AgentId agent) {
  std::lock_guard lock(mutex_);
  const Age age = home_.operation();
  home_.sent(age, agent);
  return age;
}

Age Exchange::oldest() const {
  std::lock_guard lock(mutex_);
  return home_.oldest();
}

void Exchange::allocate(ExtentId first, ExtentId count) {
  std::lock_guard lock(mutex_);
  home_.allocate(first, count);
}

void Exchange::free(ExtentId first, ExtentId count) {
  home([&] { home_.free(first, count, actions_); });
}

AgentId Exchange::owner(ExtentId extent) const {
  std::lock_guard lock(mutex_);
  return home_.owner(extent);
}

void Exchange::post(const Message& message) {
  home([&] {
    if (message.to == kHome) {
      home_.receive(message, actions_);
    } else if (message.to < kMostAgents) {
      actions_.push_back({.kind = ActionKind::kSend, .message = message});
    }
  });
}

bool Exchange::take(AgentId agent, std::vector<Message>& to) {
  std::lock_guard lock(mutex_);
  std::vector<Message>& messages = inboxes_[agent].messages;
  if (messages.empty()) return false;
  to.insert(to.end(), messages.begin(), messages.end());
  messages.clear();
  return true;
}

std::vector<Action> Exchange::news() {
  std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

}  // namespace olpager::directory
