#include "tools/olpagestat/trails.h"

#include <algorithm>
#include <cmath>

#include "tools/olpagestat/executors.h"

namespace olpager::tools {

using pager::Counters;
using pager::valueOf;

namespace {

// The share of the device that waited longest.
std::optional<double> stalledOf(const Counters& now, const Counters& before, double seconds,
                                const DeviceChoice& devices) {
  std::optional<double> most;
  for (unsigned device = 0; device < now.devicesInUse(); device++) {
    if (!devices.holds(device)) continue;
    const uint64_t then = valueOf(before.why.devices[device].waiting_ns);
    const uint64_t waited = std::max(valueOf(now.why.devices[device].waiting_ns), then) - then;
    const double share = std::min(1.0, static_cast<double>(waited) / 1e9 / seconds);
    most = std::max(most.value_or(0), share);
  }
  return most;
}

// For a program that has its pager elsewhere: pages that came to an executor from another one.
std::optional<double> executorsTraffic(const Counters& now, const Counters& before,
                                       double seconds) {
  std::optional<double> sum;
  for (const ExecutorFigures& one : executorFigures(now, &before, seconds))
    if (one.a_second) sum = sum.value_or(0) + one.a_second->bytes_in;
  return sum;
}

TrailPoint pointOf(const Counters& now, const Counters& before, double at, double seconds,
                   const DeviceChoice& devices) {
  TrailPoint point;
  point.seconds = at;
  const Figures figures = figuresOf(now, &before, seconds, devices);
  if (now.devicesInUse() != 0) point.traffic = figures.traffic();
  if (!devices.only && executorsOf(now) != 0) {
    if (const auto more = executorsTraffic(now, before, seconds))
      point.traffic = point.traffic.value_or(0) + *more;
  }
  point.stalled = stalledOf(now, before, seconds, devices);
  point.hit_rate = figures.hit_rate;
  return point;
}

}  // namespace

void Trails::add(const Sample& now, const Sample& before) {
  std::erase_if(points_,
                [&](const auto& entry) { return find(now, entry.first.first) == nullptr; });
  const double seconds = now.seconds - before.seconds;
  if (seconds <= 0) return;
  for (const auto& process : now.reading.processes) {
    const ProcessKey key = keyOf(process);
    const auto* then = find(before, key);
    if (then == nullptr) continue;
    const auto devices = static_cast<int>(process.counters->devicesInUse());
    for (int device = kAll; device < devices; device++) {
      DeviceChoice choice;
      if (device != kAll) choice.only = static_cast<unsigned>(device);
      auto& points = points_[{key, device}];
      points.push_back(pointOf(*process.counters, *then->counters, now.seconds, seconds, choice));
      if (points.size() > kMost) points.pop_front();
    }
  }
}

const std::deque<TrailPoint>& Trails::of(const ProcessKey& key, const DeviceChoice& devices) const {
  static const std::deque<TrailPoint> kNone;
  const auto found = points_.find({key, devices.only ? static_cast<int>(*devices.only) : kAll});
  return found != points_.end() ? found->second : kNone;
}

namespace {

// U+2800 and what it has of eight dots.
std::string braille(unsigned dots) {
  return {'\xe2', static_cast<char>(0xa0 | dots >> 6), static_cast<char>(0x80 | (dots & 0x3f))};
}

}  // namespace

std::vector<std::string> plotLines(const std::vector<std::optional<double>>& values, double most,
                                   size_t columns, size_t rows, bool braille_too) {
  // The dots of a character from the bottom, of its left and its right column.
  constexpr unsigned kDots[2][4] = {{0x40, 0x04, 0x02, 0x01}, {0x80, 0x20, 0x10, 0x08}};
  const size_t across = braille_too ? 2 : 1, steps = braille_too ? 4 : 2;
  const size_t room = columns * across;
  // How high the value at a place of the plot is, in steps.
  const auto heightAt = [&](size_t place) -> size_t {
    if (place + values.size() < room) return 0;
    const auto& value = values[place + values.size() - room];
    if (!value) return 0;
    const double share = most > 0 ? std::clamp(*value / most, 0.0, 1.0) : 0;
    return std::max<size_t>(
        1, static_cast<size_t>(std::lround(share * static_cast<double>(rows * steps))));
  };
  std::vector<std::string> lines;
  for (size_t row = rows; row-- != 0;) {
    std::string line;
    for (size_t column = 0; column < columns; column++) {
      unsigned dots = 0;
      size_t filled = 0;
      for (size_t side = 0; side < across; side++) {
        const size_t height = heightAt(column * across + side);
        const size_t here = height > row * steps ? std::min(steps, height - row * steps) : 0;
        filled = std::max(filled, here);
        for (size_t step = 0; braille_too && step < here; step++) dots |= kDots[side][step];
      }
      if (braille_too) {
        line += dots == 0 ? " " : braille(dots);
      } else {
        line += filled == 0 ? ' ' : filled < steps ? '.' : ':';
      }
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace olpager::tools
