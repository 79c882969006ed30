"""Programs of tests/apps in the unified view over two gpunodes, pages and calls over RDMA. Each by
run_app.py, one after the other: what failed is printed with all that it said, and counted at the end.
For the virtual machine of run-in-guest.

    view.py RUN_APP [OPTION...] -- [OPTION...] PROGRAM [-- [OPTION...] PROGRAM]...

Options before the first `--` are for all, those behind it for the one program.
"""
import os, subprocess, sys, time


def parts(words):
    """The words between `--` each."""
    found = [[]]
    for word in words:
        if word == "--":
            found.append([])
        else:
            found[-1].append(word)
    return found


def main(words):
    common, *programs = parts(words)
    host = os.environ["RDMA_PEER_ADDR"]
    # What the guest says to its own card goes by the wire.
    subprocess.run(["ip", "rule", "add", "pref", "30", "iif", "lo", "to", host, "lookup", "100"], check=True)
    failed = []
    for own in programs:
        name = os.path.basename(own[-1])
        start = time.monotonic()
        done = subprocess.run([*common, "--listen", host, *own], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
        skipped = done.returncode == 77
        told = "skipped" if skipped else "ok" if done.returncode == 0 else "FAILED"
        print(f"{name}: {told}, {time.monotonic() - start:.1f} s", flush=True)
        if done.returncode != 0 and not skipped:
            failed.append(name)
            print(done.stdout, flush=True)
    print(f"{len(programs) - len(failed)} of {len(programs)} programs went well" + (": not " + ", ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
