#!/usr/bin/env python3
"""tools/arrows: the project's own includes go down, and one that goes up is found.

arrows.py PROJECT real|planted
"""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile

project, case = pathlib.Path(sys.argv[1]), sys.argv[2]
ARROWS = project / "tools/arrows"


def run(root):
    return subprocess.run([sys.executable, "-B", ARROWS, "--root", root], capture_output=True, text=True, timeout=60)


def real():
    done = run(project)
    assert done.returncode == 0, done.stdout + done.stderr


def planted():
    loader = importlib.machinery.SourceFileLoader("arrows", str(ARROWS))
    sys.dont_write_bytecode = True
    arrows = importlib.util.module_from_spec(importlib.util.spec_from_loader("arrows", loader))
    loader.exec_module(arrows)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in arrows.MAY_USE:
            (root / name).mkdir(parents=True, exist_ok=True)
        # The known exceptions are needed as long as they are in the table.
        for name, used in arrows.KNOWN:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            with open(root / name, "a", encoding="utf-8") as out:
                out.write(f'#include "{used}"\n')

        def says(name, text, *parts):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
            done = run(root)
            assert done.returncode == (1 if parts else 0), (name, done)
            for part in parts:
                assert part in done.stdout, (part, done.stdout)
            (root / name).unlink()

        says("base/fine.h", '#include <cuda.h>\n#include "base/log.h"\n')
        says("tools/fine.cpp", '#include "forwarding/ask.h"\n#include "memserver/client.h"\n#include "pager/pool.h"\n')
        says("base/up.h", '\n  #  include "coherence/codec.h"\n', "base/up.h:2: base may not use coherence/codec.h")
        says("pager/tiers/up.cpp", '#include "memserver/frame_pool.h"\n', "pager may not use memserver/frame_pool.h")
        says("interpose/forward/up.cpp", '#include "pager/space/space.h"\n', "may not use pager/space/space.h")
        says("gpunode/worker/up.cpp", '#include "pager/pool.h"\n', "may not use pager/pool.h")
        says("gpunode/worker/across.h", '#include "interpose/forward/session.h"\n', "may not use interpose/forward/session.h")
        says("interpose/api/up.h", '#include "base/log.h"\n', "interpose/api may not use base/log.h")
        says("tools/server.cpp", '#include "memserver/server/service.h"\n', "may not use memserver/server/service.h")
        says("interpose/local/nowhere.h", '#include "elsewhere/thing.h"\n', "may not use elsewhere/thing.h")
        says("interpose/unknown/file.h", "", "interpose/unknown/file.h: the table has no folder for it")
        (root / "forwarding").rmdir()
        done = run(root)
        assert done.returncode == 1 and "forwarding: the table names it" in done.stdout, done
        for name, used in arrows.KNOWN:
            (root / name).unlink(missing_ok=True)
            done = run(root)
            assert f"{name}: no longer includes {used}" in done.stdout, done


{"real": real, "planted": planted}[case]()
