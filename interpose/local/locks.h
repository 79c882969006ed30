// The locks of the interposer, in the order in which a thread may take them (a thread that holds
// one takes only later ones). None is held across a call of the driver that can wait for the GPU,
// and none is taken by a launch whose kernel is known.
//
// clang-format off
//    1  Root::init_mutex         root.cpp          first load of the driver, cuInit's one-time work
//       Ties::mutex          graph_parts.cpp   nodes of executable graphs (before the next two: the
//                                              driver is asked for kernels' parameters)
//    2  ModuleRoots::mutex       modules.cpp       modules and libraries, and which of their
//                                                  variables the pager knows
//    3  ParamLayouts::mutex      param_layout.cpp  writers of the table of parameter layouts
//                                                  (readers take nothing)
//    4  Captures::mutex          captures.cpp      what captures, graphs and executable graphs
//                                                  reach
//       GraphMemories::mutex graph_memory.cpp  memory that is allocated inside captures (under
//                                              Captures::mutex, too)
//    5  ForeignMaps::mutex       foreign_maps.cpp  mappings of the driver's own handles in the
//                                                  range
//    6  PinnedUsers::mutex       pinned_users.cpp  textures, surfaces and exported handles that
//                                                  keep memory in VRAM
//       IpcExports::mutex    ipc_exports.cpp   allocations that other processes may map (taken with
//                                              no other)
//       IpcImports::mutex    ipc_imports.cpp   other processes' memory that is mapped here (held
//                                              while the other is asked)
//    7  MemoryPools::mutex       memory_pools.cpp  pools that the program made, allocations that
//                                                  came from one
//    8  HostRanges::mutex        host_memory.cpp   pinned and managed host memory that the program
//                                                  made
//    9  PrimaryContexts::mutex   contexts.cpp      how often the program retained each primary
//                                                  context
//       Greens::mutex        green_contexts.cpp  green contexts, and whose their memory is (taken
//                                                with no other)
//   10  LegacyParameters::mutex  launch.cpp        parameter blocks of the launches of CUDA 2
//   11  HoldStreams::mutex       runtime.cpp       streams that hold memory for captured calls
//       LostContexts::mutex  lost_memory.cpp   contexts that lost memory at memservers (taken with
//                                              no other)
//   12  Loans::mutex            relief.cpp        what the pager gave up for objects of the driver
// clang-format on
//
// The pager's own locks (pager/locks.h) come after all of these. fork(): the child takes none
// of them: every function that would finds no pool and goes to the driver.
#pragma once
