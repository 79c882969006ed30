#!/usr/bin/env python3
"""olrun --cdi: its file is one of CDI 1.1.0, its edits give a program the library, and what can't be in a container is one line.

  valid     files of many settings, held to the interface's rules (SPEC.md, and the checks of its own library)
  mistakes  one line with status 2 for what is wrong
  applied   a file's variables and mounts, made in namespaces of its own as an engine makes them: a program runs by them

cdi.py --olrun FILE --olctl FILE --program SAXPY CASE
Exit status 77: this kernel makes no such namespace for who asks.
"""
import argparse
import json
import os
import re
import stat
import subprocess
import sys
import tempfile

LONG = 60
SKIPPED = 77
ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
BYTES = str(64 << 20)


def olrun(options, *arguments, **more):
    return subprocess.run([options.olrun, *arguments], env={**ENV, **more}, capture_output=True, text=True, timeout=LONG, stdin=subprocess.DEVNULL)


# ---- the interface's rules

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?")
# Released versions, oldest first, and fields that came with one: engines refuse unknown fields, and a version below what is used.
VERSIONS = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]
STRINGS = "strings"
MOUNT = {"hostPath": str, "containerPath": str, "type": str, "options": STRINGS}
DEVICE_NODE = {"path": str, "hostPath": str, "type": str, "major": int, "minor": int, "fileMode": int, "permissions": str, "uid": int, "gid": int}
HOOK = {"hookName": str, "path": str, "args": STRINGS, "env": STRINGS, "timeout": int}
HOOKS = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


def fields(value, known, needed=()):
    assert isinstance(value, dict) and set(value) <= set(known) and set(needed) <= set(value), value
    for name, one in value.items():
        if known[name] is STRINGS:
            assert isinstance(one, list) and all(isinstance(text, str) for text in one), (name, one)
        elif known[name] is not None:
            assert type(one) is known[name], (name, one)


def check_edits(edits):
    """Returns the version that they need."""
    fields(edits, {"env": STRINGS, "deviceNodes": list, "mounts": list, "hooks": list, "netDevices": list, "additionalGids": list, "intelRdt": dict})
    assert any(edits.values()), "a device without an edit is refused"
    needs = "0.3.0"
    for variable in edits.get("env", []):
        assert variable.index("=") > 0, variable
    for node in edits.get("deviceNodes", []):
        fields(node, DEVICE_NODE, ["path"])
        assert node["path"].startswith("/") and set(node.get("permissions", "")) <= set("rwm"), node
        if "hostPath" in node:
            needs = max(needs, "0.5.0")
    for mount in edits.get("mounts", []):
        fields(mount, MOUNT, ["hostPath", "containerPath"])
        assert mount["hostPath"].startswith("/") and mount["containerPath"].startswith("/"), mount
        if "type" in mount:
            needs = max(needs, "0.4.0")
    for hook in edits.get("hooks", []):
        fields(hook, HOOK, ["hookName", "path"])
        assert hook["hookName"] in HOOKS and hook["path"].startswith("/"), hook
    if "additionalGids" in edits or "intelRdt" in edits:
        needs = max(needs, "0.7.0")
    if "netDevices" in edits:
        needs = max(needs, "1.1.0")
    return needs


def checked(text):
    """The file's only device."""
    file = json.loads(text)
    fields(file, {"cdiVersion": str, "kind": str, "annotations": dict, "devices": list, "containerEdits": dict}, ["cdiVersion", "kind", "devices"])
    vendor, kind = file["kind"].split("/")
    assert len(vendor) <= 253 and all(LABEL.fullmatch(label) for label in vendor.split(".")) and CLASS.fullmatch(kind), file["kind"]
    (device,) = file["devices"]
    fields(device, {"name": str, "annotations": dict, "containerEdits": dict}, ["name", "containerEdits"])
    assert NAME.fullmatch(device["name"]), device["name"]
    needs = check_edits(device["containerEdits"])
    if device["name"][0].isdigit():
        needs = max(needs, "0.5.0")
    assert file["cdiVersion"] in VERSIONS and file["cdiVersion"] >= needs, (file["cdiVersion"], needs)
    return device


def written(options, *arguments, **more):
    done = olrun(options, "--cdi", *arguments, **more)
    assert done.returncode == 0 and done.stderr == "", (arguments, done)
    device = checked(done.stdout)
    edits = device["containerEdits"]
    assert device["name"] == arguments[0]
    disks = [mount for mount in edits["mounts"] if "rw" in mount["options"]]
    for mount in disks:
        assert {"rw", "nosuid", "nodev", "noexec", "bind"} == set(mount["options"]) and os.path.isdir(mount["hostPath"]), mount
        assert os.path.realpath(mount["hostPath"]) == mount["hostPath"], mount
    for mount in edits["mounts"]:
        if mount in disks:
            continue
        assert {"ro", "nosuid", "nodev", "bind"} == set(mount["options"]), mount
        # Nothing that a link leads elsewhere.
        assert os.path.realpath(mount["hostPath"]) == mount["hostPath"] and os.path.isfile(mount["hostPath"]), mount
    inside = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    assert len(inside) == len(edits["mounts"]), "two mounts at one place"
    env = dict(variable.split("=", 1) for variable in edits["env"])
    assert len(env) == len(edits["env"]), "one variable twice"
    # Each path that a variable names is there.
    for variable in ("LD_PRELOAD", "OL_KEY", "OL_DRIVER", "OL_CONFIG"):
        assert variable not in env or env[variable] in inside, (variable, env, inside)
    assert env["LD_PRELOAD"] and inside[env["LD_PRELOAD"]].endswith("/libolpager.so"), inside
    folders = env["LD_LIBRARY_PATH"].split(":")
    assert os.path.dirname(env["LD_PRELOAD"]) in folders and "/usr/local/nvidia/lib64" in folders, folders
    assert all(name.startswith(("OL_", "LD_", "XLA_", "TF_", "TRITON_", "NCCL_")) for name in env), env
    return env, inside


def run_valid(options, folder):
    env, inside = written(options, "small")
    assert not any(name.startswith("OL_") for name in env), env
    env, _ = written(options, "small", "--vram", "8GiB", "--host", "50%", "--log", "info", OL_REACH="all", OL_VRAM="1GiB", OL_COUNTERS_KEEP="7")
    assert {name: value for name, value in env.items() if name.startswith("OL_")} == {
        "OL_VRAM": "8GiB", "OL_HOST": "50%", "OL_LOG": "info", "OL_REACH": "all"}, env
    env, _ = written(options, "0.Of-2_b", "--driver", "sim")
    assert env["OL_DRIVER"].endswith("/libolsimcuda.so")
    key = os.path.join(folder, "key")
    subprocess.run([options.olctl, "keygen", "--name", "here", "--out", key], check=True, capture_output=True, timeout=LONG)
    os.symlink(key, os.path.join(folder, "link"))
    env, inside = written(options, "lent", "--memserver", "10.0.0.2:7070", "--memserver", "10.0.0.3:7070", "--replicas", "2", "--key",
                          os.path.join(folder, "link"))
    assert env["OL_MEMSERVER"] == "10.0.0.2:7070,10.0.0.3:7070" and inside[env["OL_KEY"]] == os.path.realpath(key), (env, inside)
    # A disk's folder is at its place in the container too, and can be written to.
    disk = os.path.join(folder, "disk")
    os.mkdir(disk)
    env, inside = written(options, "deep", "--disk", f"{disk}:1GiB", "--disk", f"{disk}:2GiB")
    assert env["OL_DISK"] == f"{disk}:1GiB,{disk}:2GiB" and inside[disk] == os.path.realpath(disk), (env, inside)
    # A file's key as an option's; the gpunode's devices for who asks NVML.
    config = os.path.join(folder, "settings.toml")
    with open(config, "w") as file:
        file.write(f'gpunode = "10.0.0.3:7071"\nkey = "{key}"\n')
    env, inside = written(options, "far", "--config", config)
    assert inside[env["OL_KEY"]] == os.path.realpath(key) and inside[env["OL_CONFIG"]] == os.path.realpath(config), (env, inside)
    assert env["NCCL_P2P_LEVEL"] == "SYS" and any(path.endswith("/libnvidia-ml.so.1") for path in inside), inside
    # A user's own settings are not a container's.
    home = os.path.join(folder, "home/.config/olpager")
    os.makedirs(home)
    with open(os.path.join(home, "olpager.toml"), "w") as file:
        file.write('gpunode = "10.0.0.9:7071"\n')
    env, _ = written(options, "small", HOME=os.path.join(folder, "home"))
    assert "NCCL_P2P_LEVEL" not in env, env
    # To a file, as a whole: the same text, for all to read whatever the umask, in place of one that was there.
    out = os.path.join(folder, "olpager.json")
    for _ in range(2):
        done = subprocess.run(["sh", "-c", 'umask 077; exec "$@"', "sh", options.olrun, "--cdi", "small", "--vram", "8GiB", "--out", out], env=ENV,
                              capture_output=True, text=True, timeout=LONG)
        assert done.returncode == 0 and done.stdout == f"{out}: for containers with --device olpager.dev/client=small\n", done
        assert open(out).read() == olrun(options, "--cdi", "small", "--vram", "8GiB").stdout and stat.S_IMODE(os.stat(out).st_mode) == 0o644
    assert [name for name in os.listdir(folder) if "new" in name] == []


def run_mistakes(options, folder):
    def refused(what, *arguments):
        done = olrun(options, *arguments)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, (arguments, done)
        assert done.stderr.startswith("olrun: ") and re.search(what, done.stderr), (what, done.stderr)

    for name in ("", "-a", "a-", "a b", "a/b", "a=b", "ü", "x" * 64):
        refused("--cdi.*(letters|missing)", f"--cdi={name}")
    refused("NAME is missing", "--cdi")
    refused("--out: .*--cdi", "--out", folder + "/x", "--", "true")
    refused("no program is started", "--cdi", "a", "--", "true")
    refused("--check", "--cdi", "a", "--check")
    refused("--stats", "--cdi", "a", "--stats")
    refused("gpunode local", "--cdi", "a", "--gpunode", "local")
    refused("unix:/run/x.*HOST:PORT", "--cdi", "a", "--memserver", "unix:/run/x")
    refused("unix:/run/y.*HOST:PORT", "--cdi", "a", "--gpunode", "unix:/run/y")
    refused("driver /lib/libcuda.so.1.*engine", "--cdi", "a", "--driver", "/lib/libcuda.so.1")
    refused("/nowhere/key", "--cdi", "a", "--key", "/nowhere/key")
    refused("/nowhere/disk of --disk is not there", "--cdi", "a", "--disk", "/nowhere/disk:1GiB")
    refused("--vram", "--cdi", "a", "--vram", "much")
    refused("/nowhere/settings", "--cdi", "a", "--config", "/nowhere/settings.toml")
    refused("--out: /nowhere/olpager.json: No such file.*folder", "--cdi", "a", "--out", "/nowhere/olpager.json")
    refused("--out", "--cdi", "a", "--out", folder)
    refused("--vram.*gpunode", "--cdi", "a", "--vram", "1GiB", "--gpunode", "10.0.0.3:7071")
    os.makedirs(folder, exist_ok=True)
    assert os.listdir(folder) == [], os.listdir(folder)


def run_applied(options, folder):
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
    tried = subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/opt"], capture_output=True, text=True, timeout=LONG)
    if tried.returncode != 0:
        print(f"skipped: no mount namespace can be had here: {tried.stderr.strip()}")
        return SKIPPED
    env, inside = written(options, "sim", "--driver", "sim", "--vram", "16MiB", "--host", "128MiB", OL_SIM_VRAM="64MiB")
    steps = ["set -e", "mount -t tmpfs tmpfs /opt"]
    for place, host in inside.items():
        # What is mounted may lie below /opt itself.
        assert not host.startswith("/opt/"), host
        steps += [f"mkdir -p '{os.path.dirname(place)}'", f"touch '{place}'", f"mount --bind '{host}' '{place}'", f"mount -o remount,ro,bind '{place}'"]
    steps.append('exec env -i "$@"')
    own = [f"{name}={value}" for name, value in {**ENV, "XDG_RUNTIME_DIR": folder, "OL_COUNTERS_KEEP": "7", **env}.items()]
    done = subprocess.run([*unshare, "sh", "-c", "\n".join(steps), "sh", *own, options.program, "--bytes", BYTES], capture_output=True, text=True,
                          timeout=LONG, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "OK saxpy" in done.stdout, done
    # It paged: 64 MiB through 16.
    shown = subprocess.run([options.olpagestat, "--once", "--json"], env={**ENV, "XDG_RUNTIME_DIR": folder}, capture_output=True, text=True, timeout=LONG)
    assert shown.returncode == 0, shown
    (process,) = json.loads(shown.stdout)["processes"]
    (device,) = process["devices"]
    assert device["vram_budget_bytes"] == 16 << 20, device
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--olrun", "--olctl", "--olpagestat", "--program"):
        parser.add_argument(name, required=True)
    parser.add_argument("case", choices=["valid", "mistakes", "applied"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-cdi-") as folder:
        return {"valid": run_valid, "mistakes": run_mistakes, "applied": run_applied}[options.case](options, folder) or 0


if __name__ == "__main__":
    sys.exit(main())
