#!/usr/bin/env python3
"""Runs a command forwarded, on an olgpunode of its own with the simulated GPU. Its output and exit status are the command's.

on_gpunode.py --olgpunode P --olrun P [--transport tcp|shm] -- COMMAND...
"""
import argparse
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../apps"))
from run_app import Gpunode, MIB, USUAL_TIMEOUT  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--olrun", required=True)
    parser.add_argument("--olgpunode", required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--host", type=int, default=512 * MIB, help="host tier of the gpunode in bytes")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(namespace=argparse.Namespace(timeout=USUAL_TIMEOUT))
    with tempfile.TemporaryDirectory(prefix="olpager-forward-") as scratch:
        env = dict(os.environ, XDG_CONFIG_HOME=scratch, XDG_CACHE_HOME=scratch, XDG_RUNTIME_DIR=scratch)
        gpunode = Gpunode(options, env, 384 * MIB)
        if gpunode.address is None:
            gpunode.process.kill()
            sys.exit("the gpunode did not start:\n" + gpunode.text())
        try:
            forwarded = [options.olrun, "--gpunode", gpunode.address, "--transport", options.transport, "--"]
            status = subprocess.run(forwarded + options.command, env=env).returncode
        finally:
            wrong = gpunode.end()
        if wrong:
            sys.exit(f"{wrong}:\n{gpunode.text()}")
        return status


if __name__ == "__main__":
    sys.exit(main())
