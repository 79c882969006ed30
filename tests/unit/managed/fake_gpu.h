// A pager that plays the GPU, as an agent beside the CPU: memory of its own, into which it copies a
// page that it gets, and out of which it writes a page that it gives into the page's frame. While
// it has a page, the frame holds rubbish: who reads the frame then is found out.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <span>
#include <thread>
#include <vector>

#include "coherence/cpu/frames.h"
#include "coherence/directory/exchange.h"
#include "pager/tiers/elsewhere.h"

namespace olpager::pager {

using GpuLock = std::unique_lock<std::mutex>;

class FakeGpu final : public Residence<GpuLock> {
 public:
  static constexpr size_t kWords = space::kPageBytes / sizeof(uint64_t);
  static constexpr uint8_t kRubbish = 0xEE;

  FakeGpu(directory::Exchange& exchange, directory::AgentId id)
      : exchange_(exchange), id_(id), elsewhere_(id, *this, false) {
    exchange.join(id, [this] { bell_.release(); });
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeGpu() override {
    ended_ = true;
    bell_.release();
    thread_.join();
  }

  void add(directory::ExtentId first, Frames& frames) {
    GpuLock lock(mutex_);
    elsewhere_.resize(first + frames.pages());
    for (uint32_t page = 0; page < frames.pages(); ++page)
      pages_[first + page] = {
          .frames = &frames, .index = page, .frame = frames.alias(page), .vram = {}};
  }
  /// The page's bytes are lost: when it is given, its frame has no memory. Only for frames that
  /// have memory by the page (Frames::Memory::kByPage).
  void lose(directory::ExtentId extent) {
    GpuLock lock(mutex_);
    pages_[extent].lost = true;
  }
  /// A kernel that uses these extents: `work` gets each one's memory.
  void run(std::span<const directory::ExtentId> extents,
           const std::function<void(directory::ExtentId, uint64_t*)>& work) {
    GpuLock lock(mutex_);
    const directory::Age age = exchange_.operation(id_);
    std::vector<directory::Need> needs;
    for (const directory::ExtentId extent : extents)
      needs.push_back({extent, directory::Mode::kOwn});
    elsewhere_.need(age, needs, exchange_.oldest(), lock);
    while (!elsewhere_.submit(age)) changed_.wait(lock);
    std::vector<uint64_t*> memory;
    for (const directory::ExtentId extent : extents) memory.push_back(pages_[extent].vram.get());
    lock.unlock();
    for (size_t i = 0; i < extents.size(); ++i) work(extents[i], memory[i]);
    lock.lock();
    elsewhere_.complete(age, lock);
  }
  void run(directory::ExtentId extent, const std::function<void(uint64_t*)>& work) {
    run({&extent, 1}, [&](directory::ExtentId, uint64_t* memory) { work(memory); });
  }
  /// Takes the page and does nothing with it.
  void take(directory::ExtentId extent) {
    run(extent, [](uint64_t*) {});
  }

  std::atomic<uint32_t> mistakes{0};

 private:
  struct Page {
    Frames* frames = nullptr;
    uint32_t index = 0;
    std::byte* frame = nullptr;
    std::unique_ptr<uint64_t[]> vram;
    bool mapped = false;
    bool lost = false;
  };
  void expect(bool holds) {
    if (!holds) ++mistakes;
  }
  void arrive(directory::ExtentId extent, bool bytes) {
    Page& page = pages_[extent];
    expect(!page.mapped);
    if (!page.vram) page.vram = std::make_unique<uint64_t[]>(kWords);
    if (bytes) {
      std::memcpy(page.vram.get(), page.frame, space::kPageBytes);
    } else {
      std::memset(page.vram.get(), 0, space::kPageBytes);
    }
    std::memset(page.frame, kRubbish, space::kPageBytes);
  }

  void fetch(directory::ExtentId extent, directory::AgentId, directory::Number number,
             directory::Content, GpuLock& lock) override {
    arrive(extent, true);
    elsewhere_.landed(extent, number, lock);
  }
  void clear(directory::ExtentId extent, GpuLock&) override { arrive(extent, false); }
  void grant(directory::ExtentId extent, directory::Mode mode, GpuLock&) override {
    expect(mode == directory::Mode::kOwn);
    pages_[extent].mapped = true;
  }
  void yield(directory::ExtentId extent, GpuLock&) override {
    Page& page = pages_[extent];
    expect(page.mapped);
    page.mapped = false;
    if (page.lost) return page.frames->empty(page.index, 1);
    std::memcpy(page.frame, page.vram.get(), space::kPageBytes);
  }
  void release(directory::ExtentId extent, GpuLock&) override {
    expect(!pages_[extent].mapped);
    pages_[extent].vram.reset();
  }
  void stop(directory::ExtentId, GpuLock&) override { expect(false); }
  void go(directory::ExtentId, GpuLock&) override { expect(false); }
  void lend(directory::ExtentId, GpuLock&) override { expect(false); }
  void lendOver(directory::ExtentId, GpuLock&) override { expect(false); }
  void runnable(directory::Age) override { changed_.notify_all(); }
  void failed(directory::Age, directory::ExtentId) override { expect(false); }
  void post(const directory::Message& message) override { exchange_.post(message); }
  void violated(const directory::Action&) override { expect(false); }

  void loop() {
    std::vector<directory::Message> messages;
    for (;;) {
      bell_.acquire();
      if (ended_) return;
      GpuLock lock(mutex_);
      messages.clear();
      if (!exchange_.take(id_, messages)) continue;
      for (const directory::Message& message : messages) elsewhere_.receive(message, lock);
    }
  }

  directory::Exchange& exchange_;
  directory::AgentId id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::counting_semaphore<> bell_{0};
  Elsewhere<GpuLock> elsewhere_;
  std::map<directory::ExtentId, Page> pages_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace olpager::pager
