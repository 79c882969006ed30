#!/usr/bin/env python3
"""Generates from the specification of the driver API everything that is made from it.

usage: generate.py --out DIRECTORY file.api...
Writes the files of OUTPUTS into DIRECTORY. A mistake in the specification is one line, file:line: what, and exit 1.
"""

import argparse
import os
import sys

import emit_docs
import emit_facts
import emit_forward
import emit_local
import emit_stubs
import emit_tables
import specification

OUTPUTS = {
    "driver_symbols.h": emit_tables.driver_symbols_h,
    "driver_symbols.cpp": emit_tables.driver_symbols_cpp,
    "driver_table.h": emit_tables.driver_table_h,
    "driver_table.cpp": emit_tables.driver_table_cpp,
    "driver_declarations.h": emit_tables.driver_declarations_h,
    "type_checks.cpp": emit_tables.type_checks_cpp,
    "proc_address.h": emit_tables.proc_address_h,
    "proc_address.cpp": emit_tables.proc_address_cpp,
    "export_stubs.S": emit_stubs.export_stubs_s,
    "exports.map": emit_stubs.exports_map,
    "sim_defaults.cpp": emit_stubs.sim_defaults_cpp,
    "local_functions.h": emit_local.local_functions_h,
    "local_table.cpp": emit_local.local_table_cpp,
    "residency_wrappers.cpp": emit_local.residency_wrappers_cpp,
    "forward_functions.h": emit_forward.forward_functions_h,
    "forward_client.cpp": emit_forward.forward_client_cpp,
    "forward_worker.cpp": emit_forward.forward_worker_cpp,
    "forward_samples.cpp": emit_forward.forward_samples_cpp,
    "unified_functions.h": emit_forward.unified_functions_h,
    "unified_functions.cpp": emit_forward.unified_functions_cpp,
    "function_facts.h": emit_facts.function_facts_h,
    "function_facts.cpp": emit_facts.function_facts_cpp,
    "coverage.md": emit_docs.coverage_md,
}


def main():
    parser = argparse.ArgumentParser(description="Generates what is made from the specification of the driver API.")
    parser.add_argument("--out", required=True, help="folder to write to")
    parser.add_argument("files", nargs="+", help="specification files")
    options = parser.parse_args()
    try:
        spec = specification.read_files(options.files)
    except (specification.SpecificationError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for name, emit in OUTPUTS.items():
        with open(os.path.join(options.out, name), "w", encoding="utf-8") as stream:
            stream.write(emit(spec))
    return 0


if __name__ == "__main__":
    sys.exit(main())
