// The locks of the interposer, in the order in which a thread may take them (a thread that holds one takes only later
// ones). None is held across a call of the driver that can wait for the GPU, and none is taken by a launch whose kernel
// is known.
//
//   1  Root::init_mutex         root.cpp       first load of the driver, cuInit's one-time work
//   2  ModuleRoots::mutex       modules.cpp    modules and libraries whose globals are still to be listed, and those
//   listed 3  ParamLayouts::mutex      param_layout.cpp  writers of the table of kernel parameter layouts (readers take
//   nothing) 4  Captures::mutex          captures.cpp   reach gathered for each running capture, each graph, each
//   executable graph 5  VmmHandles::mutex        vmm.cpp        the program's address reservations that are the
//   driver's 6  PinnedUsers::mutex       pinned_users.cpp  textures, surfaces and exported handles that keep
//   allocations in VRAM 7  HostRanges::mutex        host_memory.cpp   mapped pinned host memory that the program made
//
// fork(): the child takes none of them: every function that would finds no pool and goes to the driver.
#pragma once
