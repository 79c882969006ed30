#include "gpunode/supervisor/shares.h"

#include <algorithm>

namespace olpager::gpunode {

std::vector<uint64_t> shares(uint64_t total, std::span<const Claim> claims) {
  std::vector<uint64_t> budgets(claims.size(), 0);
  if (claims.empty()) return budgets;
  // Those that want less than an equal part of what is left get it, until all that are left want
  // more.
  std::vector<size_t> open(claims.size());
  for (size_t i = 0; i < open.size(); ++i) open[i] = i;
  std::sort(open.begin(), open.end(), [&](size_t a, size_t b) {
    return std::min(claims[a].wanted, claims[a].most) < std::min(claims[b].wanted, claims[b].most);
  });
  uint64_t left = total;
  size_t next = 0;
  for (; next < open.size(); ++next) {
    const uint64_t wanted = std::min(claims[open[next]].wanted, claims[open[next]].most);
    if (wanted > left / (open.size() - next)) break;
    budgets[open[next]] = wanted;
    left -= wanted;
  }
  const uint64_t level = next < open.size() ? left / (open.size() - next) : 0;
  for (size_t i = next; i < open.size(); ++i) budgets[open[i]] = level;
  // Nobody wants the rest: an equal part of it on top for each.
  const uint64_t spare = next < open.size() ? 0 : left / claims.size();
  for (size_t i = 0; i < budgets.size(); ++i)
    budgets[i] = std::min(std::max(budgets[i] + spare, total / claims.size()), claims[i].most);
  return budgets;
}

std::vector<uint64_t> hostShares(uint64_t total, std::span<const HostClaim> claims) {
  // The largest part at which all have room.
  const auto fits = [&](uint64_t part) {
    uint64_t left = total;
    for (const HostClaim& claim : claims) {
      const uint64_t has = std::max(claim.held, std::min(part, claim.most));
      if (has > left) return false;
      left -= has;
    }
    return true;
  };
  uint64_t part = 0, beyond = total;  // beyond: larger parts than this are never looked for
  while (part < beyond) {
    const uint64_t middle = beyond - (beyond - part) / 2;
    fits(middle) ? part = middle : beyond = middle - 1;
  }
  std::vector<uint64_t> limits;
  for (const HostClaim& claim : claims) limits.push_back(std::min(part, claim.most));
  return limits;
}

}  // namespace olpager::gpunode
