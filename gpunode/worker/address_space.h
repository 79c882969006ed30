// The layout of a worker's address space. The driver has to place the same things at the same
// addresses in each worker: code of the unified view runs at several executors in turns, and memory
// that goes from one to another may hold the address of a variable of its modules.
//
// A driver reserves addresses (mmap of nothing that may be used, anywhere), and places what belongs
// to a context within them. The order of that follows from the calls that it gets. The addresses
// follow from chance as well: where the kernel has put libraries and stacks, and which threads have
// begun meanwhile. So reservations get an area of their own, from its top down, one after the
// other: this process's mmap() comes before the C library's for all that it loads.
//
// Thread-safety: mmap() from any thread, the others before the driver is loaded. No locks.
#pragma once

#include <cstdint>

namespace olpager::gpunode {

/// Keeps the addresses from what the driver and this process map by themselves. Mappings that are
/// there already stay.
void keepFree(uint64_t base, uint64_t bytes);

/// Keeps all from 0x6000'0000'0000 on for the program, and what is below it for the driver.
/// Managed variables lie where the driver places them in this process, and the program has to have
/// the same addresses free (interpose/forward/variables.cpp). Programs map what they need from the
/// top of their address space down: from now on this process maps nothing there.
void divideAddresses();

}  // namespace olpager::gpunode
