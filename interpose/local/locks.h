// The locks of the interposer: their ranks, below, are the order in which a thread may take them. A
// thread that holds one takes only those of higher ranks (base/ranked_mutex.h). None is held across
// a call of the driver that can wait for the GPU, and none is taken by a launch whose kernel is
// known.
//
// The pager's own locks (pager/locks.h) come after all of these. fork(): the child takes none of
// them: every function that would finds no pool and goes to the driver.
#pragma once

#include "base/ranked_mutex.h"

namespace olpager::local {

/// First load of the driver, cuInit's one-time work: root.cpp.
inline constexpr base::LockRank kInitMutex{10, "Root::init_mutex"};
/// Nodes of executable graphs: graph_parts.cpp. Before the next two: the driver is asked for
/// kernels' parameters.
inline constexpr base::LockRank kTiesMutex{15, "Ties::mutex"};
/// Modules and libraries, and which of their variables the pager knows: modules.cpp.
inline constexpr base::LockRank kModuleRootsMutex{20, "ModuleRoots::mutex"};
/// Writers of the table of parameter layouts: param_layout.cpp. Readers take nothing.
inline constexpr base::LockRank kParamLayoutsMutex{30, "ParamLayouts::mutex"};
/// The reach of captures, graphs and executable graphs: captures.cpp.
inline constexpr base::LockRank kCapturesMutex{40, "Captures::mutex"};
/// Memory that is allocated inside captures: graph_memory.cpp.
inline constexpr base::LockRank kGraphMemoriesMutex{45, "GraphMemories::mutex"};
/// Mappings of the driver's own handles in the range: foreign_maps.cpp.
inline constexpr base::LockRank kForeignMapsMutex{50, "ForeignMaps::mutex"};
/// Textures, surfaces and exported handles that keep memory in VRAM: pinned_users.cpp.
inline constexpr base::LockRank kPinnedUsersMutex{60, "PinnedUsers::mutex"};
/// Allocations that other processes may map: ipc_exports.cpp. Taken with no other.
inline constexpr base::LockRank kIpcExportsMutex{62, "IpcExports::mutex"};
/// Other processes' memory that is mapped here: ipc_imports.cpp. Held while the other is asked.
inline constexpr base::LockRank kIpcImportsMutex{64, "IpcImports::mutex"};
/// Pools that the program made, allocations that came from one: memory_pools.cpp.
inline constexpr base::LockRank kMemoryPoolsMutex{70, "MemoryPools::mutex"};
/// Pinned and managed host memory that the program made: host_memory.cpp.
inline constexpr base::LockRank kHostRangesMutex{80, "HostRanges::mutex"};
/// How often the program retained each primary context: contexts.cpp.
inline constexpr base::LockRank kPrimaryContextsMutex{90, "PrimaryContexts::mutex"};
/// Green contexts, and whose their memory is: green_contexts.cpp. Taken with no other.
inline constexpr base::LockRank kGreensMutex{92, "Greens::mutex"};
/// Parameter blocks of the launches of CUDA 2: launch.cpp.
inline constexpr base::LockRank kLegacyParametersMutex{100, "LegacyParameters::mutex"};
/// Streams that hold memory for captured calls: runtime.cpp.
inline constexpr base::LockRank kHoldStreamsMutex{110, "HoldStreams::mutex"};
/// Contexts that lost memory at memservers: lost_memory.cpp. Taken with no other.
inline constexpr base::LockRank kLostContextsMutex{112, "LostContexts::mutex"};
/// Memory that the pager gave up for objects of the driver: relief.cpp.
inline constexpr base::LockRank kLoansMutex{120, "Loans::mutex"};

}  // namespace olpager::local
