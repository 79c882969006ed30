"""Local mode: which functions it provides, and the wrappers that make a function's device memory resident."""

from specification import Expression
from emit_tables import LEGACY_TYPES, NOTE, without_macros

MODES = {"read": "kRead", "write": "kWrite", "readwrite": "kReadWrite"}


def _declaration(symbol, types_only=False):
    inside = symbol.form.types() if types_only else symbol.form.signature()
    return f"CUresult ol_local_{symbol.name}({inside})"


def local_functions_h(spec):
    own = [s for s in spec.symbols() if s.local == "own"]
    wrap = [s for s in spec.symbols() if s.local == "wrap"]
    return f"""{NOTE}// The functions that local mode puts in the place of the driver's: those written by hand (`own` in the specification) and
// the generated residency wrappers (`wrap`). A function of the first list that is not defined is the driver's.
#pragma once

#include <cuda.h>

#include "interpose/api/driver_symbols.h"
#include "interpose/api/driver_table.h"
{LEGACY_TYPES}
#pragma GCC visibility push(hidden)
extern "C" {{
// Written by hand.
{"".join(f"{_declaration(s)};" + chr(10) for s in own)}
// Generated.
{"".join(f"{_declaration(s)};" + chr(10) for s in wrap)}}}
#pragma GCC visibility pop

namespace olpager::local {{

/// Address of the function that local mode provides for `symbol`; null when the driver's own is to be used.
void* localFunction(api::Symbol symbol);
/// The driver's own function of that symbol: on its way through here the program's signals are held back (held_signals.h).
/// Null: it is to be called as it is.
void* heldFunction(api::Symbol symbol);
/// Puts those in the place of the driver's functions, once.
void holdSignalsIn(api::DriverTable& driver);
/// How the specification has `symbol` handled.
enum class Behaviour : uint8_t {{ kPass, kWrap, kOwn }};
Behaviour localBehaviour(api::Symbol symbol);

}}  // namespace olpager::local
"""


def _guard(symbol):
    names = ", ".join(p.name for p in symbol.form.parameters)
    return f"""CUresult guarded_{symbol.name}({symbol.form.signature()}) {{
  try {{
    return ol_local_{symbol.name}({names});
  }} catch (const std::exception& error) {{
    return olpager::local::failed("{symbol.name}", error);
  }}
}}
"""


def _is_held(symbol):
    function = symbol.form.function
    return not function.blocking and not function.has("interruptible")


def _held(symbol):
    names = ", ".join(p.name for p in symbol.form.parameters)
    return f"""CUresult held_{symbol.name}({symbol.form.signature()}) {{
  const olpager::base::HeldSignals held;
  return g_driver.{symbol.name}({names});
}}
"""


def local_table_cpp(spec):
    own = [s for s in spec.symbols() if s.local == "own"]
    held = [s for s in spec.symbols() if _is_held(s)]
    rows = ""
    for name in spec.all_names():
        holds = f"reinterpret_cast<void*>(&held_{name.name})" if hasattr(name, "form") and _is_held(name) else "nullptr"
        local = name.local if hasattr(name, "form") else "pass"
        written = f"reinterpret_cast<void*>(&ol_local_{name.name})" if local != "pass" else "nullptr"
        called = f"reinterpret_cast<void*>(&guarded_{name.name})" if local == "own" else written
        rows += f"    {{{written}, {called}, {holds}, Behaviour::k{local.capitalize()}}},\n"
    weak = "".join(f"#pragma weak ol_local_{s.name}\n" for s in own)
    guards = "".join(_guard(s) for s in own)
    return f"""{NOTE}#define __CUDA_API_VERSION_INTERNAL
#include <exception>

#include "base/held_signals.h"
#include "interpose/api/local_functions.h"
#include "interpose/local/local_runtime.h"

// Weak: what is not written is null, and the driver's own function is used.
{weak}
namespace {{

// What the program calls: no exception of ours goes into it. (The generated wrappers hold theirs back themselves.)
{guards}
olpager::api::DriverTable g_driver;  // as the driver has it

{"".join(_held(s) for s in held)}
}}  // namespace

namespace olpager::local {{
namespace {{

struct Entry {{
  void* written;  // null: it is not
  void* function;
  void* held;
  Behaviour behaviour;
}};
const Entry kEntries[api::kSymbolCount] = {{
{rows}}};

}}  // namespace

void* localFunction(api::Symbol symbol) {{
  const Entry& entry = kEntries[static_cast<size_t>(symbol)];
  return entry.written != nullptr ? entry.function : nullptr;
}}
void* heldFunction(api::Symbol symbol) {{ return kEntries[static_cast<size_t>(symbol)].held; }}
void holdSignalsIn(api::DriverTable& driver) {{
  g_driver = driver;
{"".join(f"  if (driver.{s.name} != nullptr) driver.{s.name} = held_{s.name};{chr(10)}" for s in held)}}}
Behaviour localBehaviour(api::Symbol symbol) {{ return kEntries[static_cast<size_t>(symbol)].behaviour; }}

}}  // namespace olpager::local
"""


def _wrapper(symbol):
    form = symbol.form
    names = ", ".join(p.name for p in form.parameters)
    thread = "true" if symbol.per_thread else "false"
    stream = form.stream()
    key = f"streamKey({stream}, {thread})" if stream else f"defaultStreamKey({thread})"
    direct = [(p, a) for p, a in form.accesses() if a.word != "ranges"]
    extracted = [(p, a) for p, a in form.accesses() if a.word == "ranges"]

    def address(parameter):
        return parameter.name if not parameter.is_pointer else f"reinterpret_cast<uint64_t>({parameter.name})"

    out = f'extern "C" {_declaration(symbol)} {{\n'
    out += f'  return withRanges<&DriverTable::{symbol.name}, {"false" if stream else "true"}>("{symbol.name}",\n'
    def sink_call(annotation):
        _, name, arguments = annotation.parenthesis.tree
        return f"extract::{name}({', '.join(['sink'] + [Expression.emit(e) for e in arguments])});"

    touches = " || ".join(f"pool.contains({address(p)})" for p, _ in direct)
    for parameter, annotation in direct:
        if annotation.word != "read":  # where pointers may come to lie that kernels follow
            touches += f" || pool.mayHoldRoot({address(parameter)}, bounded({annotation.bracket.cpp()}))"
    writes = any(a.word != "read" for _, a in direct)
    adds = ""
    for parameter, annotation in direct:
        arguments = f"{address(parameter)}, bounded({annotation.bracket.cpp()}), Mode::{MODES[annotation.word]}"
        if annotation.word == "read" and writes:
            kind = "kElsewhere" if not parameter.get("in") else "kNow" if form.function.blocking else "kInOrder"
            adds += f" addSource(access, pool, {arguments}, HostRead::{kind});"
        else:
            adds += f" access.addRange({arguments});"
    for parameter in form.parameters:
        if parameter.get("word"):
            adds += f" access.addHostSource(&{parameter.name}, sizeof {parameter.name}, true);"
    waits = ""  # of a copy: whether it waits inside the driver
    if symbol.name.startswith("cuMemcpy"):
        sync = "false" if stream else "true"
        waits = " || ".join(f"copyWaits(pool, {address(p)}, bounded({a.bracket.cpp()}), "
                            f"{'true' if a.word == 'read' else 'false'}, {sync})" for p, a in direct)
        if extracted:
            calls = " ".join(sink_call(a) for _, a in extracted)
            find = f"Waiting sink(pool, {sync}); {calls} return sink.found()"
            waits = f"if ({waits}) return true; {find}" if waits else find
        else:
            waits = f"return {waits}"
    else:
        waits = "return false"
    if extracted:
        calls = " ".join(sink_call(a) for _, a in extracted)
        find = f"Touching sink(pool); {calls} return sink.found()"
        touches = f"if ({touches}) return true; {find}" if touches else find
        adds += f" Adding sink(access, pool); {calls}"
    else:
        touches = f"return {touches}"
    out += f"      [&]([[maybe_unused]] const Pool& pool) {{ {waits}; }},\n"
    out += f"      [&](const Pool& pool) {{ {touches}; }},\n"
    out += f"      [&] {{ return {key}; }},\n"
    out += f"      [&](Access& access, [[maybe_unused]] const Pool& pool) {{{adds} }}{',' if names else ''}\n"
    out += f"      {names});\n}}\n"
    return out


def residency_wrappers_cpp(spec):
    wrap = [s for s in spec.symbols() if s.local == "wrap"]
    body = "\n".join(_wrapper(s) for s in wrap)
    return f"""{NOTE}// Copies, memsets and stream memory operations: what they read and write in the range is made resident first.
#define __CUDA_API_VERSION_INTERNAL
#include <algorithm>
#include <exception>

#include "interpose/api/driver_table.h"
#include "interpose/api/local_functions.h"
#include "interpose/local/local_runtime.h"
#include "interpose/api/range_extractors.h"

namespace olpager::local {{
namespace {{

using pager::Access;
using pager::Mode;
using pager::Pool;
namespace extract = api::extract;

/// A size as the pager gets it: far beyond every allocation is far enough, and the end of the range must not wrap.
constexpr uint64_t bounded(uint64_t bytes) {{ return std::min(bytes, uint64_t{{1}} << 62); }}

/// Says whether an operation uses the range at all.
class Touching : public extract::RangeSink {{
 public:
  explicit Touching(const Pool& pool) : pool_(pool) {{}}
  void add(uint64_t address, uint64_t bytes, extract::Use use) override {{
    found_ = found_ || pool_.contains(address) || (use != extract::Use::kRead && pool_.mayHoldRoot(address, bounded(bytes)));
  }}
  void addFrom(uint64_t address) override {{ add(address, 0, extract::Use::kReadWrite); }}
  uint64_t arrayElementBytes(CUarray) override {{ return 1; }}
  bool found() const {{ return found_; }}

 private:
  const Pool& pool_;
  bool found_ = false;
}};

/// Names a range that is read. What lies outside the pool may hold addresses of it that come in with the copy.
void addSource(Access& access, const Pool& pool, uint64_t address, uint64_t bytes, Mode mode, HostRead read) {{
  if (pool.contains(address)) {{
    access.addRange(address, bytes, mode);
  }} else {{
    const auto* const host = reinterpret_cast<const void*>(address);
    access.addHostSource(host, bytes, pool.paging() && readableNow(host, bytes, read));
  }}
}}

/// Names the ranges of an operation to its Access.
class Adding : public extract::RangeSink {{
 public:
  Adding(Access& access, const Pool& pool) : access_(access), pool_(pool) {{}}
  void add(uint64_t address, uint64_t bytes, extract::Use use) override {{
    if (use == extract::Use::kRead) {{
      addSource(access_, pool_, address, bounded(bytes), Mode::kRead, HostRead::kElsewhere);
    }} else {{
      access_.addRange(address, bounded(bytes), static_cast<Mode>(use));
    }}
  }}
  void addFrom(uint64_t address) override {{ access_.addParameter(&address, sizeof address); }}
  uint64_t arrayElementBytes(CUarray array) override {{
    const auto describe = localRuntime().driver->cuArray3DGetDescriptor_v2;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {{}};
    if (describe == nullptr || describe(&descriptor, array) != CUDA_SUCCESS) return 1;
    return extract::arrayFormatBytes(descriptor.Format) * descriptor.NumChannels;
  }}

 private:
  Access& access_;
  const Pool& pool_;
}};
static_assert(static_cast<int>(Mode::kRead) == static_cast<int>(extract::Use::kRead) &&
              static_cast<int>(Mode::kWrite) == static_cast<int>(extract::Use::kWrite) &&
              static_cast<int>(Mode::kReadWrite) == static_cast<int>(extract::Use::kReadWrite));

/// Whether a copy waits inside the driver for what is before it in its stream: one side is host memory, which the copy has been
/// done with when the call returns.
bool copyWaits(const Pool& pool, uint64_t address, uint64_t bytes, bool source, bool sync) {{
  return !pool.contains(address) && waitsInDriver(address, bytes, source, sync);
}}

/// The same of an operation's ranges.
class Waiting : public extract::RangeSink {{
 public:
  Waiting(const Pool& pool, bool sync) : pool_(pool), sync_(sync) {{}}
  void add(uint64_t address, uint64_t bytes, extract::Use use) override {{
    found_ = found_ || copyWaits(pool_, address, bounded(bytes), use == extract::Use::kRead, sync_);
  }}
  void addFrom(uint64_t) override {{}}
  uint64_t arrayElementBytes(CUarray) override {{ return 1; }}
  bool found() const {{ return found_; }}

 private:
  const Pool& pool_;
  const bool sync_;
  bool found_ = false;
}};

/// The driver may wait for what is before a copy in its stream, with a lock held that paging needs. What is there may wait for a
/// touch of managed memory, which has to be paged for it: a host function, or a kernel for a thread. So the copy is made when
/// nothing is left to wait for.
template <typename Waits, typename Key>
void awaitBefore(Pool& pool, Waits waits, Key key) {{
  if (!pool.hasManaged()) return;
  const pager::StreamKey stream = key();
  if (!runsNow(stream)) return;
  if (waits(pool)) awaitStream(stream);
  pool.awaitHostFunctions(stream);
}}

/// The driver's function, with what `add` names in the range resident for as long as the operation needs it. `kWaits`: it has no
/// stream, so that it returns when what it does with managed memory is done. The driver takes that for device memory.
template <auto kFunction, bool kWaits, typename Waits, typename Touches, typename Key, typename Add, typename... Arguments>
CUresult withRanges(const char* name, Waits waits_before, Touches touches, Key key, Add add, Arguments... arguments) {{
  const Runtime& runtime = localRuntime();
  const auto call = runtime.driver->*kFunction;
  if (call == nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // the driver is older than the function
  if (runtime.pool == nullptr) return call(arguments...);
  try {{
    awaitBefore(*runtime.pool, waits_before, key);
  }} catch (const std::exception& error) {{
    return failed(name, error);
  }}
  if (!touches(*runtime.pool)) {{
    const CUresult ended = contextsEnded() ? endedIn(key()) : CUDA_SUCCESS;
    return ended == CUDA_SUCCESS ? call(arguments...) : ended;
  }}
  try {{
    const pager::StreamKey stream = key();
    Access access(*runtime.pool, stream);
    add(access, *runtime.pool);
    const CUresult entered = enter(access, stream);
    if (entered != CUDA_SUCCESS) return entered;
    const bool waits = kWaits && access.namesManaged();
    const CUresult result = call(arguments...);
    leave(access, stream, result);
    return waits && result == CUDA_SUCCESS ? runtime.driver->cuStreamSynchronize(stream.stream) : result;
  }} catch (const std::exception& error) {{
    return failed(name, error);
  }}
}}

}}  // namespace
}}  // namespace olpager::local

using namespace olpager::local;   // NOLINT(google-build-using-namespace): the wrappers are C functions
using olpager::api::DriverTable;
using olpager::api::extract::saturatingProduct;
using olpager::pager::Access;
using olpager::pager::Mode;
using olpager::pager::Pool;
namespace extract = olpager::api::extract;

{body}"""
