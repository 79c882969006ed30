// The GPUs of this machine, as NVML tells of them: what all programs together have there, those
// beside olpager too. NVML's order need not be that of the devices of a program.
//
// Thread-safety: one thread. The library is loaded at the first call and stays. Errors: what NVML
// does not tell is absent; without NVML there are no cards, and a reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace olpager::tools {

struct Card {
  unsigned number = 0;  // NVML's
  std::string name, uuid;
  std::optional<uint64_t> total, used;  // bytes of VRAM, of all processes
  std::optional<unsigned> gpu_percent;
  /// Those that run something there, with what each has where that is known.
  struct Process {
    uint32_t pid = 0;
    std::optional<uint64_t> bytes;
  };
  std::optional<std::vector<Process>> processes;
};

struct Cards {
  std::vector<Card> all;
  std::string why_none;  // half a line; "": there are some, or nobody asked
};
Cards readCards();

/// "card 0: NVIDIA H200, 12.0G of 140G used, busy 37%; 2 processes beside these have 3.0G". `own`:
/// processes that are shown otherwise.
std::string cardText(const Card& card, const std::vector<uint32_t>& own);

}  // namespace olpager::tools
