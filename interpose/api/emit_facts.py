"""What the specification knows of functions (FACTS) as a table for code that is written by hand."""

from emit_tables import NOTE
from specification import FACTS


def _enumerator(fact):
    return "k" + "".join(word.capitalize() for word in fact.split("-"))


def _comment(text):
    out, line = "", "  ///"
    for word in text.split():
        if len(line) + 1 + len(word) > 100:
            out, line = out + line + "\n", "  ///"
        line += " " + word
    return out + line + "\n"


def function_facts_h(spec):
    facts = "".join(f"{_comment('It ' + says + '.')}  {_enumerator(fact)},\n" for fact, says in FACTS.items())
    return f"""{NOTE}// What the specification says of functions, beside their parameters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace olpager::api {{

enum class Fact : uint8_t {{
{facts}}};

/// Whether it holds for the function of a symbol, given by number. Of a number that is no symbol's it never does.
bool holds(Fact fact, size_t symbol);

}}  // namespace olpager::api
"""


def function_facts_cpp(spec):
    rows = ""
    for name in spec.all_names():
        facts = list(name.function.facts) if hasattr(name, "form") else []
        if hasattr(name, "form") and name.form.forward == "cached" and "overtakes" not in facts:
            facts.append("overtakes")
        rows += "    " + (" | ".join(f"bit(Fact::{_enumerator(fact)})" for fact in facts) or "0") + f",  // {name.name}\n"
    return f"""{NOTE}#include "interpose/api/function_facts.h"

#include "interpose/api/driver_symbols.h"

namespace olpager::api {{
namespace {{

constexpr uint32_t bit(Fact fact) {{ return uint32_t{{1}} << static_cast<unsigned>(fact); }}
static_assert({len(FACTS)} <= 32);

constexpr uint32_t kFacts[kSymbolCount] = {{
{rows}}};

}}  // namespace

bool holds(Fact fact, size_t symbol) {{ return symbol < kSymbolCount && (kFacts[symbol] & bit(fact)) != 0; }}

}}  // namespace olpager::api
"""
