#include "interpose/forward/answer_cache.h"

#include <cstdint>
#include <cstring>

#include "forwarding/wire/wire.h"

namespace olpager::forward {
namespace {

constexpr size_t kMostAnswers = 65536;

// The function, the context and the arguments; not the thread, nor the number of the wait, nor
// names, nor an age.
std::string keyOf(const std::vector<std::byte>& record) {
  CallHead head;
  std::memcpy(&head, record.data(), sizeof head);
  std::string key(reinterpret_cast<const char*>(&head.function), sizeof head.function);
  key.append(reinterpret_cast<const char*>(&head.context), sizeof head.context);
  const size_t before = argumentsAt(head);
  key.append(reinterpret_cast<const char*>(record.data()) + before, record.size() - before);
  return key;
}

// The same the other way round.
struct Question {
  size_t function;
  std::string_view arguments;
};
Question questionIn(std::string_view key) {
  uint16_t function = 0;
  std::memcpy(&function, key.data(), sizeof function);
  return {function, key.substr(sizeof function + sizeof(uint64_t))};
}

}  // namespace

bool AnswerCache::find(const std::vector<std::byte>& record, std::vector<std::byte>* answer) {
  const std::string key = keyOf(record);
  std::lock_guard lock(mutex_);
  const auto found = answers_.find(key);
  if (found == answers_.end()) return false;
  *answer = found->second;
  return true;
}

void AnswerCache::keep(const std::vector<std::byte>& record, const std::vector<std::byte>& answer) {
  std::lock_guard lock(mutex_);
  if (answers_.size() >= kMostAnswers) answers_.clear();
  answers_[keyOf(record)] = answer;
}

void AnswerCache::forgetAll() {
  std::lock_guard lock(mutex_);
  answers_.clear();
}

void AnswerCache::forgetOf(api::Symbol symbol) {
  forgetIf(
      [&](size_t function, std::string_view) { return function == static_cast<size_t>(symbol); });
}

void AnswerCache::forgetIf(
    const std::function<bool(size_t function, std::string_view arguments)>& is) {
  std::lock_guard lock(mutex_);
  std::erase_if(answers_, [&](const auto& entry) {
    const Question question = questionIn(entry.first);
    return is(question.function, question.arguments);
  });
}

}  // namespace olpager::forward
