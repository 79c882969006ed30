// The unified view: ONE device of all GPUs that the program's gpunodes have.
// With several GPUs executors.h decides where calls go.
//
// Handles. A handle that the program holds is a number that means the same at every executor (a
// gpunode's worker with a GPU). Nothing is translated on the program's side: a call's record goes
// to any executor as it is, and the executor's table (gpunode/worker/handles.h) says which object
// of its driver the number is bound to. A number is drawn
//
//   by the program's side   for what a call makes, and ahead of the call: from one count for all
//                           executors (ProgramParts::common_numbers). A call that nobody waits for
//                           says the number as an argument. One that is answered brings as many
//                           numbers as the specification says that its answer may have handles
//                           (Names in wire.h); the executor binds what is new among them to these
//                           in their order. So a call that makes something can go to several
//                           executors, also at once, and what it makes has one number.
//                           Handles whose count only the driver knows (nodes at a capture's tail)
//                           get more numbers than there ever are.
//   by an executor          for what only an answer of its own tells of. The executor's slot is in
//                           the number, so no two are the same.
//
// The primary context has the number of the first device of kCommonSlot everywhere.
//
// States of a number, at an executor: unknown -> bound (a call that made it, or binds it) -> gone
// (its object was destroyed, or ended with its context or library). Nodes of a graph that is gone
// stay bound. A node to which a driver gives the handle of one has a number of its own all the
// same: which handles come again differs from driver to driver. The worker that makes the call
// moves them, under HandleTable's mutex. The program's side keeps no table of numbers. All of a
// program's handles are of its one unified session (sessionOfHandle). So to encode a call costs no
// lookup and no lock, and discrete sessions know nothing of it.
//
// Owners. The session that the program has (Program::unified) owns what the program knows of its
// objects: contexts, streams, allocations, captures (session_parts.h). An executor owns the
// objects.
//
// Functions. A function that the view answers differently from forwarded mode is
// ol_unified_<symbol>, written by hand; one that can't be in it has the fact `exports` in the
// specification and is a refusal that names itself; everything else is forwarded mode's own
// function. The choice is made when a symbol is resolved, once.
//
// Thread-safety: any thread. Locks: none of its own.
#pragma once

#include <cuda.h>

#include "base/settings.h"
#include "coherence/status/unified_counters.h"
#include "interpose/api/driver_symbols.h"

namespace olpager::unified {

/// Gives the counters of a view over several gpunodes; for the life of the process.
using CountersSource = status::UnifiedCounters& (*)();

/// From now on the program's sessions are made for one device. Before the first of them, and once.
void configure(const base::Settings& settings, CountersSource counters);

/// The view's function in the place of forwarded mode's; null: none. Generated.
void* unifiedFunction(api::Symbol symbol);

/// Can't be in the unified view: CUDA_ERROR_NOT_SUPPORTED, and a line once.
CUresult refused(const char* function);

}  // namespace olpager::unified
