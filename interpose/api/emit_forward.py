"""Forwarded mode: the client's encoders and the worker's decoders of every function whose parameters tell all that is needed.

Both sides put the arguments in the same order (encoded_order): values first, then single elements, then arrays, so that the size of an
array is known when it comes. docs/internals/forwarding.md has the whole; interpose/forward/call.h and gpunode/worker/invocation.h what
the generated code calls.
"""

import hashlib
import re

from specification import Expression
from emit_tables import LEGACY_TYPES, NOTE

# Handles that travel as they are: kernels get them as parameters, where nobody can tell them from numbers.
VERBATIM_HANDLES = frozenset(("CUtexObject", "CUsurfObject", "CUgraphConditionalHandle", "CUlogIterator"))

# Structures with pointers to host memory or handles in them: what they mean is written by hand or not there.
DEEP_TYPES = frozenset(
    """CUDA_MEMCPY2D CUDA_MEMCPY3D CUDA_MEMCPY3D_PEER CUDA_MEMCPY3D_BATCH_OP CUgraphNodeParams
    CUDA_MEM_ALLOC_NODE_PARAMS CUctxCreateParams CUlaunchConfig
    CUlaunchAttributeValue CUkernelNodeAttrValue CUgraphKernelNodeUpdate CUDA_KERNEL_NODE_PARAMS
    CUDA_KERNEL_NODE_PARAMS_v1 CUDA_HOST_NODE_PARAMS CUDA_BATCH_MEM_OP_NODE_PARAMS CUDA_LAUNCH_PARAMS
    CUDA_CONDITIONAL_NODE_PARAMS CUasyncNotificationInfo CUcheckpointLockArgs CUcheckpointCheckpointArgs
    CUcheckpointRestoreArgs CUcheckpointUnlockArgs CUeglFrame""".split())

# Structures with handles or opaque bytes in them that the worker translates (settle and unsettle of gpunode/worker/structures.h).
SETTLED_TYPES = frozenset(("CUDA_RESOURCE_DESC", "CUgraphExecUpdateResultInfo", "CUDA_GRAPH_INSTANTIATE_PARAMS", "CUdevResource",
                           "CUarrayMapInfo"))

# Those that come with answers, and how many handles they have then.
HANDLES_IN = {"CUDA_RESOURCE_DESC": 1, "CUgraphExecUpdateResultInfo": 2, "CUDA_GRAPH_INSTANTIATE_PARAMS": 1}

# How many handles an array of the driver's own has at most: nodes at the tail of a capture. Numbers for so many are drawn, of 2^40.
MOST_UNCOUNTED = 4096

# What has numbers of devices in it, and where: an empty text, it is a device, or a location itself.
LOCATIONS = {"CUmemLocation": "", "CUmemAccessDesc": "location", "CUmemPoolProps": "location", "CUmemAllocationProp": "location"}
DEVICE_TYPES = frozenset(LOCATIONS) | {"CUdevice", "CUarrayMapInfo"}

# Sizes of untyped values that are numbers, whatever the attribute. Other such values may be handles, addresses or descriptors.
PLAIN_VALUES = ("graphMemoryAttributeBytes", "poolAttributeBytes")

# What the program calls is made by this.
HELD = """// No exception of ours goes into the program, and none of its signal handlers runs meanwhile, but where the call waits
// (interpose/forward/locks.h).
template <typename Body>
CUresult held(const char* function, Body body) {
  const olpager::base::HeldInCall held;
  return guarded(function, body);
}

"""

NOT_GENERIC = ("nested", "kernel", "callback", "opaque", "host", "each")


def is_translated(parameter):
    """A handle that the worker's table translates."""
    return parameter.is_handle and parameter.base_type not in VERBATIM_HANDLES


def is_value(parameter):
    """Travels as it is: what is no pointer, or a pointer that names device memory as an address does."""
    words = {a.word for a in parameter.annotations}
    return not parameter.is_pointer or (words <= {"address", "opt"} and "address" in words)


def why_not(symbol):
    """Why the code of a symbol can't be generated; None when it can."""
    form = symbol.form
    if form.forward == "refuse":
        return "refused"
    for parameter in form.parameters:
        # A text that is no `name` may name a file, and a client names none on the gpunode.
        if parameter.get("path") or (parameter.get("string") and parameter.get("in") and not parameter.get("name")):
            return f"{parameter.name} names a file"
        for word in NOT_GENERIC:
            if parameter.get(word):
                return f"{parameter.name} is {word}"
        if parameter.base_type in DEEP_TYPES:
            return f"{parameter.name} is a {parameter.base_type}"
        direction = parameter.get("in") or parameter.get("out") or parameter.get("inout")
        if not is_value(parameter) and direction is None:
            return f"{parameter.name} has no direction"
        if parameter.is_pointer and (parameter.get("read") or parameter.get("write")):
            return f"{parameter.name} may be host or device memory"
        if parameter.type.count("*") > 1 and not parameter.get("static"):
            return f"{parameter.name} is a pointer to pointers"
        for annotation in parameter.annotations:
            for expression in (annotation.bracket, annotation.parenthesis):
                if expression is not None and annotation.word != "ranges" and \
                        any(name not in PLAIN_VALUES for name, _ in expression.calls()):
                    return f"{parameter.name} has a size that only the caller's memory tells, or may be a handle"
    if form.function.has("either-side"):
        return "either side may be host memory"
    if symbol.name.endswith("_ptds") and not form.function.has("has-async"):
        return "it runs in the calling thread's default stream and names none"
    return None


def count_of(parameter):
    """The expression for the number of elements behind a pointer."""
    for word in ("in", "out", "inout", "static"):
        note = parameter.get(word)
        if note and note.bracket:
            return note.bracket
    return None


def guarded(expression):
    """Its C++, 0 where a pointer in it is null."""
    pointers = sorted(set(_dereferenced(expression.tree)))
    text = f"uint64_t({expression.cpp()})"
    return f"({' && '.join(p + ' != nullptr' for p in pointers)} ? {text} : 0)" if pointers else text


def _dereferenced(node):
    if node[0] == "deref" and node[1][0] == "name":
        yield node[1][1]
    if node[0] == "member" and node[1][0] == "name":
        yield node[1][1]
    for part in node[1:]:
        if isinstance(part, tuple):
            yield from _dereferenced(part)
        elif isinstance(part, list):
            for one in part:
                yield from _dereferenced(one)


def follows_attribute(parameter):
    """What lies behind the pointer is as long as an attribute says: 0 bytes, and it is not known."""
    count = count_of(parameter)
    return parameter.is_pointer and count is not None and any(name in PLAIN_VALUES for name, _ in count.calls())


def encoded_order(form):
    """The parameters in the order in which they travel."""
    values = [p for p in form.parameters if is_value(p)]
    single = [p for p in form.parameters if not is_value(p) and count_of(p) is None]
    arrays = [p for p in form.parameters if not is_value(p) and count_of(p) is not None]
    return values + single + arrays


def outs(form):
    return [p for p in form.parameters if p.get("out") or p.get("inout")]


def named(form):
    """How many handles the answer may have, as terms of a sum. How long an array of the driver's own is the driver alone knows."""
    terms = []
    for p in outs(form):
        each = 1 if is_translated(p) else HANDLES_IN.get(p.base_type, 0)
        if each and p.get("static"):
            terms.append(f"({p.name} != nullptr ? {MOST_UNCOUNTED} : 0)")
        elif each:
            terms.append(guarded(count_of(p)) if count_of(p) else f"uint64_t{{{each}}}")
    return terms


def is_numbered(form, parameter):
    """A handle that the client numbers by itself."""
    return form.forward == "async" and parameter.get("new") and parameter.get("out") and is_translated(parameter)


def is_one_way(form):
    return form.forward == "async" and not form.function.blocking and \
        all(is_numbered(form, p) for p in outs(form))


def how(symbol):
    form = symbol.form
    if is_one_way(form):
        return "oneWay"
    if form.forward == "cached" and not form.function.has("changing"):
        return "cached"
    return "sync"


# Objects that a call changes: they are where they are, whatever an address says. Memory that a graph allocates is the driver's own, and two
# gpunodes' may lie at one address.
OWNERS = ("CUgraph", "CUgraphNode", "CUgraphExec")


def route(form):
    """The expression that finds the session that a call goes to: by the first graph, address, device, handle or location that says so."""
    values = [p for p in form.parameters if is_value(p)]
    out = "Route()"
    for p in values:
        if is_translated(p) and p.base_type in OWNERS:
            out += f".handle({p.name})"
    for p in values:
        if p.base_type == "CUdeviceptr":
            out += f".address({p.name})"
        elif p.is_pointer:
            out += f".address(reinterpret_cast<uint64_t>({p.name}))"
    for p in values:
        if p.base_type == "CUdevice":
            out += f".device({p.name})"
    for p in values:
        if is_translated(p) and p.base_type not in OWNERS:
            out += f".handle({p.name})"
    for p in form.parameters:
        if p.base_type == "CUdevResource" and not p.get("out"):
            out += f".handle(resourceNumber({p.name}))"
        if p.base_type not in LOCATIONS or p.get("out"):
            continue
        if not p.is_pointer:
            out += f".location(&{p.name})"
        elif LOCATIONS[p.base_type] == "":
            out += f".location({p.name})"
        else:
            out += f".location({p.name} != nullptr ? &{p.name}->{LOCATIONS[p.base_type]} : nullptr)"
    return out


# What can be at one executor of several alone: its handles are a GPU's own, or it lies in its driver's memory.
BOUND_TYPES = frozenset(
    """CUarray CUmipmappedArray CUtexObject CUsurfObject CUtexref CUsurfref CUexternalMemory CUexternalSemaphore
    CUmemGenericAllocationHandle CUgraphConditionalHandle CUuserObject CUdevResource CUdevResourceDesc CUgreenCtx""".split())

# What says that a function begins, ends or changes something as a whole, whatever else it does.
TO_ALL = ("captures", "ends-context", "ends-primary", "releases-primary")


def goes(symbol):
    """Where it goes in a session of several executors: an enumerator of Goes (interpose/forward/group.h)."""
    form, function = symbol.form, symbol.form.function
    if {p.base_type for p in form.parameters} & BOUND_TYPES:
        return "kBound"
    if any(p.get("new") and not is_translated(p) for p in form.parameters):
        return "kBound"  # memory of the driver's own
    if any(function.has(fact) for fact in TO_ALL):
        return "kAll"
    if form.accesses() or (form.stream() and "CUgraphExec" in (p.base_type for p in form.parameters)):
        return "kOperates"
    if form.stream() or function.has("has-async") or function.blocking or function.has("asks") or function.has("records"):
        return "kActive"
    if any(p.get("new") or p.get("gone") for p in form.parameters) or named(form):
        return "kAll"
    return "kActive" if outs(form) else "kAll"  # it asks, or changes something


def _uses(form):
    """What the call says of the memory that it names and of its stream, for sessions of several executors."""
    out = ""
    if stream := next((p for p in form.parameters if p.get("stream") and p.base_type == "CUstream" and not p.is_pointer), None):
        out += f"  call.inStream({stream.name}, PER_THREAD);\n"
        if any(p.base_type == "CUevent" for p in form.parameters):
            out += "  call.mayJoinCapture();\n"
    for p, access in form.accesses():
        if p.base_type == "CUdeviceptr" and not p.is_pointer and access.word != "ranges" and access.bracket:
            out += f"  call.uses({p.name}, {guarded(access.bracket)});\n"
    return out


def _client_function(symbol):
    form = symbol.form
    mode = how(symbol)
    out = f'extern "C" CUresult ol_forward_generated_{symbol.name}({form.signature()}) {{\n'
    out += f"  Call call(Symbol::{symbol.enumerator}, {route(form)});\n"
    if form.function.has("contextless"):
        out += "  call.needsNoContext();\n"
    if mode != "oneWay" and (names := named(form)):
        out += f"  call.names({' + '.join(names)});\n"
    out += _uses(form).replace("PER_THREAD", "true" if symbol.per_thread else "false")
    for p in encoded_order(form):
        count = count_of(p)
        number = guarded(count) if count else "1"
        if follows_attribute(p):
            out += f"  if ({p.name} != nullptr && {number} == 0) return CUDA_ERROR_INVALID_VALUE;\n"
        if is_value(p):
            kind = "devices" if p.base_type in DEVICE_TYPES else "handle" if is_translated(p) else "value"
            out += f"  call.{kind}({p.name});\n"
        elif p.get("string") and p.get("in"):
            out += f"  call.string({p.name});\n"
        elif is_numbered(form, p) and mode == "oneWay":
            out += f"  if ({p.name} == nullptr) return CUDA_ERROR_INVALID_VALUE;\n"
            out += f"  *{p.name} = call.number<{p.base_type}>();\n"
        elif p.get("in") or p.get("inout"):
            out += f"  call.{'devices' if p.base_type in DEVICE_TYPES else 'array'}({p.name}, {number});\n"
        else:
            out += f"  call.wants({p.name});\n"
    if form.function.has("forgets"):
        out += "  call.forgetsAnswers();\n"
    if form.function.has("changes-kernels"):
        out += "  call.changesKernels();\n"
    if mode == "oneWay":
        memory = [p for p in form.parameters if not p.is_pointer and p.base_type == "CUdeviceptr" and (p.get("read") or p.get("write") or p.get("ranges"))]
        if memory and not any(p.get("new") for p in form.parameters):
            # Whether the driver refuses it is known here for plain allocations alone.
            checks = []
            for p in memory:
                note = p.get("read") or p.get("write")
                size = guarded(note.bracket) if note else \
                    f"api::extract::span2d({', '.join(Expression.emit(e) for e in p.get('ranges').parenthesis.tree[2][1:])})"
                checks.append(f"isKnownMemory({p.name}, {size})")
                if alignment := p.get("aligned"):
                    checks.append(f"{p.name} % {alignment.bracket.text} == 0")
            out += f"  if (!({' && '.join(checks)})) return call.sync();\n"
        # What a null handle means the driver says; of streams it is one that every thread has.
        handles = [p.name for p in form.parameters if is_value(p) and is_translated(p) and (p.base_type != "CUstream" or p.get("gone"))]
        if handles:
            out += f"  if ({' || '.join(f'{name} == nullptr' for name in handles)}) return call.sync();\n"
        return out + "  return call.oneWay();\n}\n"
    if form.function.blocking:
        out += "  call.mayWait();\n"
    results = outs(form)
    for p in results:
        if count_of(p) and not p.get("static"):
            out += f"  const uint64_t count_{p.name} = {guarded(count_of(p))};\n"
    out += f"  const CUresult result = call.{mode}();\n"
    for p in results:
        if p.get("static") and p.get("string"):
            out += f"  if ({p.name} != nullptr) *{p.name} = nullptr;\n"
    if results:
        out += "  if (!call.answered()) return result;\n"
    for p in results:
        if p.get("static") and p.get("string"):
            out += f"  call.takeText({p.name});\n"
        elif p.get("static"):
            out += f"  const uint64_t count_{p.name} = call.takeKept({p.name});\n"
        else:
            take = "takeDevices" if p.base_type in DEVICE_TYPES else "takeString" if p.get("string") else \
                "takeHandles" if is_translated(p) else "take"
            out += f"  call.{take}({p.name}, {f'count_{p.name}' if count_of(p) else '1'});\n"
    # How many the caller may read now: no more than it has room for, or than have come.
    for p in results:
        for array in results:
            if array is not p and count_of(array) and set(_dereferenced(count_of(array).tree)) == {p.name}:
                there = f"{array.name} != nullptr" + (f" && *{array.name} != nullptr" if array.get("static") else "")
                out += f"  if (result == CUDA_SUCCESS && {there}) call.holds({p.name}, count_{array.name});\n"
    return out + f"  return {'call.taken(result)' if results else 'result'};\n}}\n"


def _element(parameter):
    """The type of what a pointer points to."""
    inner = parameter.type.replace("const ", "", 1).strip()
    assert inner.endswith("*")
    inner = inner[:-1].strip()
    return "std::byte" if inner == "void" else inner


def _worker_function(symbol):
    form = symbol.form
    mode = how(symbol)
    per_thread = "true" if symbol.per_thread else "false"
    out = f"CUresult serve_{symbol.name}(Invocation& in) {{\n"
    gone = []
    for p in encoded_order(form):
        count = count_of(p)
        number = guarded(count) if count else "1"
        if is_value(p):
            if p.base_type == "CUstream" and not p.get("gone"):
                out += f"  const CUstream {p.name} = in.stream({per_thread});\n"
            elif is_translated(p):
                if p.get("gone"):
                    out += f"  const uint64_t number_{p.name} = in.peek<uint64_t>();\n"
                    gone.append(p)
                out += f"  const auto {p.name} = in.handle<{p.type}>();\n"
            else:
                out += f"  const auto {p.name} = in.value<{p.type}>();\n"
        elif p.get("string") and p.get("in"):
            out += f"  const char* {p.name} = in.string();\n"
        elif is_numbered(form, p) and mode == "oneWay":
            out += f"  const uint64_t number_{p.name} = in.value<uint64_t>();\n"
            out += f"  {p.base_type} made_{p.name}{{}};\n  {p.base_type}* {p.name} = &made_{p.name};\n"
        elif p.get("in") or p.get("inout"):
            kind = "handles" if is_translated(p) else "array"
            out += f"  auto* {p.name} = in.{kind}<{_element(p)}>({number});\n"
            if p.base_type in SETTLED_TYPES:
                out += f"  settleEach(in, {p.name}, {number});\n"
        elif p.get("static"):
            inner = p.type.replace("const ", "", 1).strip()[:-1].strip()
            inner = ("const " if p.type.startswith("const ") else "") + inner
            out += f"  auto* {p.name} = in.wanted<{inner}>(1);\n"
        else:
            out += f"  auto* {p.name} = in.wanted<{_element(p)}>({number});\n"
        if follows_attribute(p):
            out += f"  if ({p.name} != nullptr && {number} == 0) in.refuseValue();\n"
    out += "  if (!in.ok()) return in.refusal();\n"
    results = outs(form)
    for p in results:
        if count_of(p) and not p.get("static"):
            out += f"  const uint64_t count_{p.name} = {guarded(count_of(p))};\n"
    if form.function.has("any-memory"):
        # An address of nothing would be the worker's own memory.
        memory = [p for p in form.parameters if p.base_type == "CUdeviceptr"]
        known = " && ".join(f"in.isMemory({p.name})" for p in memory)
        count = guarded((memory[0].get("read") or memory[0].get("write")).bracket)
        out += f"  if ({count} != 0 && !({known})) return CUDA_ERROR_INVALID_VALUE;\n"
    called, arguments = symbol.name, [p.name for p in form.parameters]
    if symbol.name.endswith("_ptds"):  # of what has-async
        called = re.sub(r"(_v2)?_ptds$", "Async", symbol.name)
        arguments.append("in.defaultStream(true)")
    out += f"  const auto call = in.driver().{called};\n  if (call == nullptr) return CUDA_ERROR_NOT_SUPPORTED;\n"
    graphs = [p for p in gone if p.base_type in ("CUgraph", "CUgraphNode")]
    for p in graphs:
        out += f"  GraphHandles with_{p.name}(in, {p.name});\n"
    out += f"  const CUresult result = call({', '.join(arguments)});\n"
    for p in gone:
        out += f"  if (result == CUDA_SUCCESS) in.gone(number_{p.name});\n"
    for p in graphs:
        out += f"  if (result == CUDA_SUCCESS) with_{p.name}.gone();\n"
    if mode == "oneWay":
        for p in results:
            out += f"  if (result == CUDA_SUCCESS) in.bind(number_{p.name}, made_{p.name});\n"
        return out + "  return result;\n}\n"
    if results and not form.function.has("tells-on-failure"):
        out += "  if (result != CUDA_SUCCESS) return result;\n"
    for p in results:
        if p.get("static") and p.get("string"):
            out += f"  in.putText({p.name});\n"
        elif p.get("static"):
            kind = "putKeptHandles" if is_translated(p) else "putKept"
            out += f"  in.{kind}({p.name}, {guarded(count_of(p))});\n"
        else:
            kind = "putHandles" if is_translated(p) else "put"
            if p.base_type in SETTLED_TYPES:
                out += f"  unsettleEach(in, {p.name}, {f'count_{p.name}' if count_of(p) else '1'});\n"
            out += f"  in.{kind}({p.name}, {f'count_{p.name}' if count_of(p) else '1'});\n"
    return out + "  return result;\n}\n"


def _using_sizes():
    return "".join(f"using olpager::api::{name};\n" for name in PLAIN_VALUES)


def generic_symbols(spec):
    return [s for s in spec.symbols() if why_not(s) is None]


def forward_functions_h(spec):
    declared = "".join(f"CUresult ol_forward_{s.name}({s.form.signature()});\n" for s in spec.symbols())
    declared += "".join(f"CUresult ol_forward_generated_{s.name}({s.form.signature()});\n" for s in generic_symbols(spec))
    digest = hashlib.sha256(spec.text().encode()).hexdigest()[:16]
    return f"""{NOTE}// What forwarded mode puts in the driver's place. Those of ol_forward_* that are not
// written by hand are null; ol_forward_generated_* are the generated encoders.
#pragma once

#include <cuda.h>
#include <cudaProfiler.h>

#include "interpose/api/driver_symbols.h"
{LEGACY_TYPES}
#pragma GCC visibility push(hidden)
extern "C" {{
{declared}}}
#pragma GCC visibility pop

namespace olpager::forward {{

/// Both ends of a session have the same, or don't understand each other.
inline constexpr uint64_t kSpecification = 0x{digest}ull;

/// What `symbol` leads to in forwarded mode: written by hand, generated, or a refusal that names itself. Never null for a
/// function of cuda.h.
void* forwardFunction(api::Symbol symbol);

}}  // namespace olpager::forward
"""


def forward_client_cpp(spec):
    generic = {s.name for s in generic_symbols(spec)}
    functions = "\n".join(_client_function(s) for s in generic_symbols(spec))
    weak = "".join(f"#pragma weak ol_forward_{s.name}\n" for s in spec.symbols())
    guards, rows, where = "", "", ""
    for name in spec.all_names():
        where += f"      {f'Goes::{goes(name)}' if hasattr(name, 'form') else 'Goes::kActive'},  // {name.name}\n"
        if not hasattr(name, "form"):
            rows += "      nullptr,\n"
            continue
        signature, names = name.form.signature(), ", ".join(p.name for p in name.form.parameters)
        guards += f"CUresult guarded_{name.name}({signature}) {{\n"
        guards += f"  return held(\"{name.name}\", [&] {{ return ol_forward_{name.name}({names}); }});\n}}\n"
        if name.name in generic:
            guards += f"CUresult otherwise_{name.name}({signature}) {{\n"
            guards += f"  return held(\"{name.name}\", [&] {{ return ol_forward_generated_{name.name}({names}); }});\n}}\n"
        else:
            never = "true" if name.form.forward == "refuse" else "false"
            guards += f"CUresult otherwise_{name.name}() {{ return refused(\"{name.name}\", {never}); }}\n"
        rows += f"      choose(&ol_forward_{name.name}, &guarded_{name.name}, &otherwise_{name.name}),\n"
    return f"""{NOTE}// The client's side of forwarded mode.
#define __CUDA_API_VERSION_INTERNAL
#include "base/held_in_calls.h"
#include "interpose/forward/call.h"
#include "interpose/api/attribute_bytes.h"
#include "interpose/api/forward_functions.h"

{weak}
using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions are C functions
using olpager::api::Symbol;
{_using_sizes()}using olpager::api::extract::saturatingProduct;
namespace api = olpager::api;

#pragma GCC visibility push(hidden)
{functions}
#pragma GCC visibility pop

namespace {{

{HELD}{guards}
template <typename Written, typename Guarded, typename Otherwise>
void* choose(Written written, Guarded guarded, Otherwise otherwise) {{
  return written != nullptr ? reinterpret_cast<void*>(guarded) : reinterpret_cast<void*>(otherwise);
}}

}}  // namespace

void* olpager::forward::forwardFunction(Symbol symbol) {{
  static void* const kFunctions[olpager::api::kSymbolCount] = {{
{rows}  }};
  return kFunctions[static_cast<size_t>(symbol)];
}}

Goes olpager::forward::whereFunctionGoes(Symbol symbol) {{
  static constexpr Goes kGoes[olpager::api::kSymbolCount] = {{
{where}  }};
  return kGoes[static_cast<size_t>(symbol)];
}}
"""


def _called_with(symbol):
    """What the order of a call depends on, and where it travels: values come first."""
    form, facts = symbol.form, symbol.form.function
    at, offset = {}, "0"
    for p in encoded_order(form):
        if not is_value(p):
            break
        at.setdefault(p.base_type, []).append(offset)
        offset += " + " + ("sizeof(uint64_t)" if is_translated(p) else f"sizeof({p.type})")
    stream, events = at.get("CUstream"), at.get("CUevent", [])
    assert len(events) <= 2
    in_default = stream is None and facts.has("has-async")
    if stream is None and not events and not in_default:
        return "{}"
    fields = {"stream": stream[0] if stream else None}
    for name, holds in {
        "per_thread": symbol.per_thread,
        "default_stream": in_default,
        "gone": any(p.get("gone") for p in form.parameters),
        "only_puts": any(p.get("stream") for p in form.parameters) and not outs(form) and not facts.blocking,
        "launches_graph": stream and "CUgraphExec" in at,
        "puts_event_in_graph": events and any(t in at for t in ("CUgraph", "CUgraphExec", "CUgraphNode")),
    }.items():
        fields[name] = "true" if holds else None
    fields["flags"] = at["unsigned int"][0] if stream and events and "unsigned int" in at else None
    fields["events"] = f"{{{', '.join((events + ['-1'])[:2])}}}" if events else None
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items() if value) + "}"


def forward_worker_cpp(spec):
    generic = generic_symbols(spec)
    functions = "\n".join(_worker_function(s) for s in generic)
    names = {s.name for s in generic}
    rows, orders = "", ""
    for name in spec.all_names():
        rows += f"    &serve_{name.name},\n" if name.name in names else "    nullptr,\n"
        orders += f"    {_called_with(name) if name.name in names else '{}'},  // {name.name}\n"
    return f"""{NOTE}// The worker's side of forwarded mode.
#define __CUDA_API_VERSION_INTERNAL
#include "gpunode/worker/graph_handles.h"
#include "gpunode/worker/invocation.h"
#include "gpunode/worker/structures.h"
#include "interpose/api/attribute_bytes.h"

namespace olpager::gpunode {{
namespace {{

{_using_sizes()}using api::extract::saturatingProduct;

{functions}
constexpr Serve kServe[api::kSymbolCount] = {{
{rows}}};
constexpr CalledWith kCalledWith[api::kSymbolCount] = {{
{orders}}};

}}  // namespace

Serve generatedService(size_t function) {{ return function < api::kSymbolCount ? kServe[function] : nullptr; }}
CalledWith calledWith(size_t function) {{ return function < api::kSymbolCount ? kCalledWith[function] : CalledWith{{}}; }}

}}  // namespace olpager::gpunode
"""


def _sample_function(symbol):
    form = symbol.form
    mode = how(symbol)
    out = f"void sample_{symbol.name}(Sampler& out) {{\n"
    for p in encoded_order(form):
        count = count_of(p)
        number = guarded(count) if count else "1"
        if is_value(p):
            draw = f"handle<{p.type}>" if is_translated(p) else "address" if p.base_type == "CUdeviceptr" else f"value<{p.type}>"
            out += f"  [[maybe_unused]] const auto {p.name} = out.{draw}();\n"
        elif p.get("string") and p.get("in"):
            out += "  out.string();\n"
        elif is_numbered(form, p) and mode == "oneWay":
            out += f"  out.number<{p.base_type}>();\n"
        elif p.get("in") or p.get("inout"):
            kind = "handles" if is_translated(p) else "array"
            out += f"  [[maybe_unused]] auto* {p.name} = out.{kind}<{_element(p)}>({number});\n"
        else:
            out += "  out.wants();\n"
    return out + "}\n"


def forward_samples_cpp(spec):
    generic = generic_symbols(spec)
    functions = "\n".join(_sample_function(s) for s in generic)
    names = {s.name for s in generic}
    rows = ""
    for name in spec.all_names():
        rows += f"    &sample_{name.name},\n" if name.name in names else "    nullptr,\n"
    return f"""{NOTE}// Arguments of calls as clients send them, drawn from a Sampler: for the fuzzing of the worker.
#define __CUDA_API_VERSION_INTERNAL
#include "tests/fuzz/rig/sampler.h"
#include "interpose/api/attribute_bytes.h"

namespace olpager::fuzz {{
namespace {{

{_using_sizes()}using api::extract::saturatingProduct;

{functions}
constexpr Sample kSamples[api::kSymbolCount] = {{
{rows}}};

}}  // namespace

Sample sampleOf(size_t function) {{ return function < api::kSymbolCount ? kSamples[function] : nullptr; }}

}}  // namespace olpager::fuzz
"""


def unified_functions_h(spec):
    declared = "".join(f"CUresult ol_unified_{s.name}({s.form.signature()});\n" for s in spec.symbols())
    return f"""{NOTE}// What the unified view puts in the place of forwarded mode's functions. Those that are not
// written by hand are null.
#pragma once

#include <cuda.h>
#include <cudaProfiler.h>

#include "interpose/api/driver_symbols.h"
{LEGACY_TYPES}
#pragma GCC visibility push(hidden)
extern "C" {{
{declared}}}
#pragma GCC visibility pop
"""


def unified_functions_cpp(spec):
    weak, guards, rows = "", "", ""
    for name in spec.all_names():
        if not hasattr(name, "form"):
            rows += "      nullptr,\n"
            continue
        signature, names = name.form.signature(), ", ".join(p.name for p in name.form.parameters)
        if name.form.function.has("exports"):
            guards += f"CUresult in_view_{name.name}() {{ return olpager::unified::refused(\"{name.name}\"); }}\n"
            rows += f"      reinterpret_cast<void*>(&in_view_{name.name}),\n"
            continue
        weak += f"#pragma weak ol_unified_{name.name}\n"
        guards += f"CUresult in_view_{name.name}({signature}) {{\n"
        guards += f"  return held(\"{name.name}\", [&] {{ return ol_unified_{name.name}({names}); }});\n}}\n"
        rows += f"      ifWritten(&ol_unified_{name.name}, &in_view_{name.name}),\n"
    return f"""{NOTE}// The functions of the unified view.
#define __CUDA_API_VERSION_INTERNAL
#include "base/held_in_calls.h"
#include "interpose/api/unified_functions.h"
#include "interpose/forward/call.h"
#include "interpose/unified/view.h"

{weak}
namespace {{

using olpager::forward::guarded;

{HELD}{guards}
template <typename Function>
void* ifWritten(Function written, Function guarded) {{
  return written != nullptr ? reinterpret_cast<void*>(guarded) : nullptr;
}}

}}  // namespace

void* olpager::unified::unifiedFunction(api::Symbol symbol) {{
  static void* const kFunctions[api::kSymbolCount] = {{
{rows}  }};
  return kFunctions[static_cast<size_t>(symbol)];
}}
"""
