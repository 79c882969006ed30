#!/usr/bin/env python3
"""tools/sizes: no file or class of the project's is too large without a reason, and one that is is found.

sizes.py PROJECT real|planted
"""
import pathlib
import subprocess
import sys
import tempfile

project, case = pathlib.Path(sys.argv[1]), sys.argv[2]


def run(*arguments):
    return subprocess.run([sys.executable, "-B", project / "tools/sizes", *arguments], capture_output=True, text=True, timeout=60)


def real():
    done = run()
    print(done.stdout, done.stderr)
    sys.exit(done.returncode)


def planted():
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "planted.h"

        def said(text):
            path.write_text(text, encoding="utf-8")
            done = run(path)
            assert done.returncode == (1 if done.stdout else 0), done
            return done.stdout

        def data(count):
            return "".join(f"  int a{i} = {i};\n" for i in range(count))

        def functions(count):
            return "".join(f"  int f{i}(int a, int b) {{ return a; }}\n" for i in range(count // 2)) + "".join(
                f"  void g{i}(const std::map<int, int>& x) const;\n" for i in range(count - count // 2))

        assert said("int a;\n" * 700) == ""
        assert "701 lines, of 700 at most" in said("int a;\n" * 701)
        assert said("// Long: one table.\n" + "int a;\n" * 700) == ""
        assert said("class A {\n" + data(25) + functions(40) + "};\n") == ""
        assert "A has 26 data members and 0 functions" in said("class A {\n" + data(26) + "};\n")
        assert "B has 0 data members and 41 functions" in said("struct B : A {\n public:\n" + functions(41) + "};\n")
        assert said("// Many members: one for each.\nclass A {\n" + data(26) + "};\n") == ""
        assert said("class A {  // Many members: one for each.\n" + functions(41) + "};\n") == ""
        # A class inside of another has members of its own; function pointers are data; what is no member does not count.
        assert said("class A {\n  struct C {\n" + data(20) + "  };\n" + data(20) + "};\n") == ""
        assert "A has 26 data members and 0 functions" in said(
            "struct A {\n" + "".join(f"  void (*f{i})(int a, int b) = nullptr;\n" for i in range(26)) + "};\n")
        assert said("class A {\n" + "  using T = int;\n  A(const A&) = delete;\n  static constexpr int kA = 1;\n" * 50 + "};\n") == ""
        # Neither comments nor strings are code.
        assert said("class A {\n" + "  // int a;\n" * 60 + '  const char* text = "};{";\n' + data(24) + "};\n") == ""


{"real": real, "planted": planted}[case]()
