"""The specification's reader and generator: the real files, a round trip of each entry, and what malformed files say.

usage: test_generator.py SPECIFICATION_FOLDER CUDA_INCLUDE_FOLDER
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER, CUDA_INCLUDE = sys.argv[1:3]
sys.path.insert(0, FOLDER)
import compatibility  # noqa: E402  (found through FOLDER)
import emit_forward  # noqa: E402
import specification  # noqa: E402

GOOD = """
function cuThing
  forward sync
  local wrap
  form cuThing@2000 cuThing_ptds@7000
    CUdeviceptr at : write[count*2]
    const void* from : in[count] read[count]
    size_t count
    CUstream where : stream
"""


def read(text):
    spec = specification.Specification()
    specification.parse_text(text, "some/folder/thing.api", spec)
    specification.check(spec, "thing.api")
    return spec


class RealFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.spec = specification.read_files(sorted(glob.glob(os.path.join(FOLDER, "*.api"))))

    def test_covers_the_headers(self):
        declared = set()
        for header in ("cuda.h", "cudaProfiler.h"):
            with open(os.path.join(CUDA_INCLUDE, header), encoding="utf-8") as stream:
                text = stream.read()
            version = re.search(r"#define CUDA_VERSION (\d+)", text).group(1) if header == "cuda.h" else version
            text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
            # cuda.h declares ptds/ptsz variants under names made by a macro.
            declared |= set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
        known = {s.name for s in self.spec.symbols()} | {f.name for f in self.spec.functions}
        if version != "13000":
            self.skipTest(f"the headers are CUDA {version}'s, not 13.0's")
        self.assertEqual(declared - known, set())
        self.assertEqual(len(self.spec.symbols()), 637)
        self.assertEqual(len(self.spec.functions), 450)

    def test_round_trip(self):
        for function in self.spec.functions:
            alone = specification.Specification()
            alone.functions.append(function)
            with self.subTest(function.name):
                self.assertEqual(read(alone.text()).text(), alone.text())
        self.assertEqual(read(self.spec.text()).text(), self.spec.text())

    def test_every_symbol_is_forwarded_or_never_will_be(self):
        # By symbol, not by function: a program has the versions of its toolkit.
        hand = compatibility.written_by_hand(os.path.join(FOLDER, "..", ".."))
        self.assertGreater(len(hand), 200)
        self.assertEqual([s.name for s in self.spec.symbols() if compatibility.forwarded(s, hand) == "not yet"], [])

    def test_an_older_version_is_refused_for_its_addresses_alone(self):
        for symbol in self.spec.symbols():
            with self.subTest(symbol.name):
                refused = symbol.form.forward == "refuse" and symbol.function.forward != "refuse"
                self.assertEqual(refused, symbol.function.forward != "refuse" and symbol.form.short_addresses)
        short = {s.name for s in self.spec.symbols() if s.form.short_addresses}
        self.assertEqual(len(short), 29)
        self.assertIn("cuMemcpyHtoD", short)
        self.assertNotIn("cuArrayCreate", short)

    def test_versions_are_found_as_programs_name_them(self):
        functions = {f.name: f for f in self.spec.functions}
        found = lambda name, version: compatibility.looked_up(functions[name], version)
        self.assertEqual(found("cuGraphKernelNodeSetParams", 11080).name, "cuGraphKernelNodeSetParams")
        self.assertEqual(found("cuGraphKernelNodeSetParams", 12000).name, "cuGraphKernelNodeSetParams_v2")
        self.assertIsNone(found("cuGraphKernelNodeSetParams", 9000))
        tests = compatibility.tests_by_symbol(os.path.join(FOLDER, "..", ".."), self.spec)
        for name in ("cuGraphKernelNodeSetParams", "cuGraphExecKernelNodeSetParams", "cuArrayCreate", "cuArrayCreate_v2"):
            self.assertTrue(tests[name], name)
        self.assertIn("apps/old_versions.cpp", tests["cuGraphKernelNodeSetParams"])
        self.assertNotIn("apps/old_versions.cpp", tests.get("cuGraphKernelNodeSetParams_v2", ()))

    def test_untyped_values_are_as_long_as_their_attributes_say(self):
        # No void* with a number for its size, whatever the attribute.
        for symbol in self.spec.symbols():
            for parameter in symbol.form.parameters:
                note = parameter.get("in") or parameter.get("out") or parameter.get("inout")
                if parameter.base_type == "void" and note and note.bracket:
                    with self.subTest(f"{symbol.name}: {parameter.name}"):
                        self.assertNotEqual(note.bracket.tree[0], "int")

    def test_no_decoder_takes_the_name_of_a_file(self):
        # Whoever adds a text decides here whether a client may send it.
        harmless = {"name", "symbol", "pciBusId"}
        decoders = emit_forward.generic_symbols(self.spec)
        self.assertGreater(len(decoders), 400)
        for symbol in decoders:
            with self.subTest(symbol.name):
                self.assertNotRegex(symbol.form.function.name, "^cuCoredumpSet")
                for parameter in symbol.form.parameters:
                    if re.match(r"(const )?char\s*\*", parameter.type) and not parameter.get("out"):
                        self.assertIn(parameter.name, harmless)
                    self.assertNotRegex(parameter.name, "(?i)path|file|fname|folder")

    def test_what_is_answered_with_handles_is_named_ahead(self):
        symbols = {s.name: s for s in emit_forward.generic_symbols(self.spec)}
        names = lambda name: emit_forward.named(symbols[name].form)
        self.assertEqual(names("cuMemCreate"), ["uint64_t{1}"])
        self.assertEqual(names("cuGraphExecUpdate_v2"), ["uint64_t{2}"])  # in a structure
        self.assertEqual(names("cuTexObjectCreate"), [])  # travels as it is
        nodes = names("cuGraphGetNodes")  # as many as there is room for
        self.assertEqual(len(nodes), 1)
        self.assertIn("*numNodes", nodes[0])
        # A graph, and the nodes at the capture's tail: the driver alone counts these, up to a bound.
        tail = names("cuStreamGetCaptureInfo_v2")
        self.assertEqual(tail[0], "uint64_t{1}")
        self.assertEqual(len(tail), 2)
        self.assertIn("dependencies_out != nullptr", tail[1])
        # Behind the head of the record, before any argument.
        for symbol in symbols.values():
            if emit_forward.how(symbol) == "oneWay" or not emit_forward.named(symbol.form):
                continue
            function = emit_forward._client_function(symbol)
            argument = re.search(r"call\.(value|handle|array|wants|devices|string)\(", function)
            self.assertLess(function.index("call.names("), argument.start(), symbol.name)

    def test_unified_view(self):
        table = emit_forward.unified_functions_cpp(self.spec)
        for function in self.spec.functions:
            for symbol in function.symbols():
                with self.subTest(symbol.name):
                    refused = f'refused("{symbol.name}")' in table
                    self.assertEqual(refused, function.has("exports"))
                    self.assertEqual(f"#pragma weak ol_unified_{symbol.name}\n" in table, not refused)
        # What gets at a device's memory from another process, and nothing else.
        exports = {f.name for f in self.spec.functions if f.has("exports")}
        alike = {f.name for f in self.spec.functions if re.search("Ipc|ShareableHandle$|(Export|Import)Pointer$", f.name)}
        self.assertEqual(exports, alike)

    def test_facts_of_functions(self):
        having = lambda fact: {f.name for f in self.spec.functions if f.has(fact)}
        self.assertEqual(having("ends-context"), {"cuCtxDestroy"})
        self.assertEqual(having("ends-primary"), {"cuDevicePrimaryCtxReset"})
        self.assertEqual(having("releases-primary"), {"cuDevicePrimaryCtxRelease"})
        self.assertEqual(having("captures"), {"cuStreamBeginCapture", "cuStreamBeginCaptureToGraph", "cuStreamEndCapture"})
        for fact in specification.FACTS:
            self.assertTrue(having(fact), fact)
        for function in self.spec.functions:
            with self.subTest(function.name):
                # Who may make something, or end it, can't tell of a failure that was before.
                if function.has("tells-failures"):
                    self.assertFalse(any(p.get("new") or p.get("gone") for form in function.forms for p in form.parameters))
                    self.assertFalse(function.has("quiet"))
                # The worker reads the context, or the device, where the encoder has put it: first.
                if function.has("ends-context"):
                    self.assertTrue(all(form.parameters[0].type == "CUcontext" for form in function.forms))
                if function.has("ends-primary") or function.has("releases-primary"):
                    self.assertTrue(all(form.parameters[0].type == "CUdevice" for form in function.forms))
                if function.has("has-async"):
                    self.assertIn(function.name + "Async", {f.name for f in self.spec.functions})

    def test_every_device_pointer_says_what_is_done_with_it(self):
        for function in self.spec.functions:
            for form in function.forms:
                for parameter in form.parameters:
                    words = {a.word for a in parameter.annotations}
                    if parameter.base_type == "CUdeviceptr":
                        with self.subTest(f"{function.name}: {parameter.name}"):
                            self.assertTrue(words & {"read", "write", "readwrite", "ranges", "address"} or
                                            any(a.word == "ranges" for p in form.parameters for a in p.annotations))

    def test_device_pointers_of_cuda_h_never_just_pass(self):
        # The first computes on the host; to the second only what the driver opened itself is more than a wrong value.
        allowed = re.compile("cuTensorMap|cuIpcCloseMemHandle")
        for function in self.spec.functions:
            for form in function.forms:
                if any(p.base_type == "CUdeviceptr_v1" for p in form.parameters):
                    continue  # 32 bits: no address of the range fits
                takes = [p for p in form.parameters
                         if (p.base_type == "CUdeviceptr" or p.get("address")) and not p.get("out")]
                if form.local == "pass" and takes and not allowed.match(function.name):
                    with self.subTest(function.name):
                        self.fail(f"{takes[0].name} of {form.symbols[0].name} would reach the driver")


class Malformed(unittest.TestCase):
    def refused(self, text, line, part):
        with self.assertRaises(specification.SpecificationError) as caught:
            read(text)
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"thing.api:{line}: "), message)
        self.assertIn(part, message)

    def changed(self, old, new):
        self.assertIn(old, GOOD)
        return GOOD.replace(old, new)

    def test_good(self):
        read(GOOD)

    def test_mistakes(self):
        cases = [
            ("forward sync", "forward sometimes", 3, "none of"),
            ("  local wrap\n", "  local wrap\n  blocking sometimes\n", 5, "'sometimes' is no fact"),
            ("  local wrap\n", "  local wrap\n  blocking forgets blocking\n", 5, "occurs twice"),
            ("  local wrap\n", "  local wrap\n  blocking\n  forgets\n", 6, "can't read"),
            ("  local wrap\n", "  local wrap\n  changing\n", 2, "'changing' and not cached"),
            ("write[count*2]", "write[count*2] aligned", 6, "number of bytes"),
            ("in[count] read[count]", "in[count] read[count] name", 7, "'name' goes with"),
            ("  forward sync\n", "", 2, "lacks 'forward"),
            ("  local wrap\n", "", 4, "lacks 'local"),
            ("local wrap", "local pass", 5, "can't be 'pass'"),
            ("cuThing@2000", "cuThing", 5, "symbol@version"),
            ("cuThing@2000", "cuOther@2000", 5, "does not belong"),
            ("cuThing_ptds@7000", "cuThing@7000", 2, "occurs twice"),
            ("write[count*2]", "write", 6, "number of bytes"),
            ("write[count*2]", "write[count*]", 6, "missing"),
            ("write[count*2]", "write[(count]", 6, "unbalanced"),
            ("write[count*2]", "write[count*2", 6, "unbalanced"),
            ("write[count*2]", "write[number]", 6, "no parameter"),
            ("write[count*2]", "write[count/2]", 6, "can't read expression"),
            ("write[count*2]", "write[half(count)]", 6, "unknown"),
            ("write[count*2]", "writes[count]", 6, "unknown annotation"),
            ("write[count*2]", "in", 6, "passed by value"),
            (" : write[count*2]", "", 6, "device pointer"),
            ("write[count*2]", "ranges(count)", 6, "extractor"),
            ("write[count*2]", "ranges(copy2d(at, count))", 6, "unknown"),
            ("in[count] read[count]", "read[count]", 7, "direction"),
            ("in[count] read[count]", "in out read[count]", 7, "two directions"),
            ("size_t count", "size_t count\n    size_t", 9, "can't read parameter"),
            ("size_t count", "size_t count\n    size_t count", 9, "occurs twice"),
            ("CUstream where : stream", "size_t where : stream", 9, "no CUstream"),
            ("    CUstream where", "   CUstream where", 9, "can't read"),
            ("function cuThing", "function thing", 2, "no function name"),
            ("  form cuThing@2000 cuThing_ptds@7000", "  form", 5, "at least one"),
            ("cuThing_ptds@7000", "cuThing_ptds@7000 local", 5, "expected 'local"),
        ]
        for old, new, line, part in cases:
            with self.subTest(f"{old} -> {new}"):
                text = self.changed(old, new)
                self.refused(text, line, part)

    def test_exports(self):
        self.refused("export thing function\n", 1, "expected 'export")
        self.refused("export cuA object 0\n", 1, "expected 'export")
        self.refused(GOOD + GOOD, 11, "occurs twice")

    def test_command_says_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "thing.api")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(self.changed("forward sync", "forward sometimes"))
            done = subprocess.run([sys.executable, "-B", os.path.join(FOLDER, "generate.py"), "--out", folder, path],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertTrue(done.stderr.startswith("thing.api:3: "), done.stderr)
            self.assertEqual(os.listdir(folder), ["thing.api"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
