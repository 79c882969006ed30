#!/usr/bin/env python3
"""The Helm chart in deploy/helm: rendered (by render.go, or by helm where that is installed), each object read by kubectl
into Kubernetes' own types, and the daemons of the simulated values started with the arguments that the chart gives them.

helm.py --chart CHART --render RENDER.GO --olmemserver P --olgpunode P --olctl P --olpagestat P
Exit: 77 where neither helm nor Go with sprig is installed.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import yaml

LONG = 60
GO_PACKAGES = "/usr/share/gocode"  # where Debian has them


class Octal(yaml.SafeLoader):
    """As Kubernetes reads YAML: a key that is there twice is refused."""


def no_twice(loader, node, deep=False):
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


Octal.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, no_twice)


def renderer(options, folder):
    """The command that prints the chart, without the values' files; None: there is none."""
    if shutil.which("helm"):
        return lambda files: ["helm", "template", "demo", options.chart, *(word for file in files for word in ("-f", file))]
    if shutil.which("go") is None or not os.path.isdir(os.path.join(GO_PACKAGES, "src/github.com/Masterminds/sprig")):
        return None
    program = os.path.join(folder, "render")
    env = {**os.environ, "GO111MODULE": "off", "GOPATH": GO_PACKAGES, "GOCACHE": os.path.join(folder, "go"), "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", program, options.render], check=True, env=env)
    return lambda files: [program, options.chart, "demo", *files]


def lost(given, read, path=""):
    """What kubectl has not read: it knows no such field, or reads another value."""
    if isinstance(given, dict):
        if not isinstance(read, dict):
            return [path]
        return [each for key, value in given.items()
                for each in (lost(value, read[key], f"{path}.{key}") if key in read else [] if value in ({}, [], None, "") else [f"{path}.{key}"])]
    if isinstance(given, list):
        if not isinstance(read, list) or len(given) != len(read):
            return [path]
        return [each for i, value in enumerate(given) for each in lost(value, read[i], f"{path}[{i}]")]
    return [] if given == read else [f"{path}: {given!r} is read as {read!r}"]


def typed(thing):
    """As kubectl reads it into the type that Kubernetes has for it."""
    change = {"Service": ["selector", "a=b"], "Pod": ["image", "none=x"]}.get(thing["kind"], ["serviceaccount", "x"])
    done = subprocess.run(["kubectl", "set", change[0], "--local", "-f", "-", "-o", "json", *change[1:]], input=json.dumps(thing),
                          capture_output=True, text=True, timeout=LONG)
    if thing["kind"] == "Pod" and "unable to find container" in done.stderr:
        done = subprocess.run(["kubectl", "set", "image", "--local", "-f", "-", "-o", "json", "*=x"], input=json.dumps(thing),
                              capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, f"{thing['kind']}: {done.stderr}"
    read = json.loads(done.stdout)
    if thing["kind"] == "Service":
        read["spec"]["selector"] = thing["spec"]["selector"]
    if thing["kind"] == "Pod":
        for container, was in zip(read["spec"]["containers"], thing["spec"]["containers"]):
            container["image"] = was["image"]
    return read


def started(options, folder, thing):
    """The daemon of a rendered set runs with the arguments of the chart, and its readiness probe says yes."""
    container = thing["spec"]["template"]["spec"]["containers"][0]
    name = container["command"][0]
    program = os.path.abspath({"olgpunode": options.olgpunode, "olmemserver": options.olmemserver}[name])
    secrets = {}
    for mount in container["volumeMounts"]:
        secrets[mount["mountPath"]] = os.path.join(folder, name + mount["mountPath"].replace("/", "-"))
        os.makedirs(secrets[mount["mountPath"]], exist_ok=True)
    key = os.path.join(secrets["/etc/olpager/key"], "key")
    subprocess.run([options.olctl, "keygen", "--name", "kube", "--out", key], check=True, stdout=subprocess.DEVNULL)
    token = os.path.join(secrets["/etc/olpager/metrics"], "token")
    with open(token, "w") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    for secret in (key, token):
        os.chmod(secret, 0o440 if os.geteuid() == 0 else 0o400)  # as the volume has it: of root

    def here(word, port):
        option, equals, value = word.partition("=")
        for there, path in secrets.items():
            if value == there or value.startswith(there + "/"):
                return option + equals + path + value[len(there):]
        return re.sub(r"=(0\.0\.0\.0|127\.0\.0\.1):(\d+)", lambda found: f"=127.0.0.1:{port if '--listen' in word else 0}", word)

    env = {**os.environ, **{pair["name"]: pair["value"] for pair in container.get("env", [])}, "XDG_RUNTIME_DIR": folder}
    more = ["--cgroup=none", "--lock=off"] if name == "olmemserver" else []
    daemon = subprocess.Popen([program, *(here(word, 0) for word in container["args"]), *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=env)
    try:
        port = None
        for line in daemon.stdout:
            if found := re.search(r"listening (?:on|at) \S+?:(\d+)", line):
                port = found.group(1)
                break
            assert line.startswith("{"), f"no JSON: {line}"
            json.loads(line)
        assert port, f"{name} ended with {daemon.wait(LONG)}"
        probe = container["readinessProbe"]["exec"]["command"]
        said = subprocess.run([program, *(here(word, port) for word in probe[1:])], capture_output=True, text=True, timeout=LONG, env=env)
        assert said.returncode == 0, f"{probe}: {said.stderr}"
        for beside in thing["spec"]["template"]["spec"]["containers"][1:]:
            exported(options, [here(word, port) for word in beside["args"]], port, env)
    finally:
        daemon.terminate()
        daemon.communicate(timeout=LONG)
    assert daemon.returncode == 0, daemon.returncode


def exported(options, words, port, env):
    """The exporter beside a gpunode, with the chart's arguments, tells of it to who has the token."""
    words = [f"--node=127.0.0.1:{port}" if word.startswith("--node=") else word for word in words]
    exporter = subprocess.Popen([options.olpagestat, *words], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env=env)
    try:
        url = next(found.group(1) for line in exporter.stdout
                   if (found := re.search(r"figures at (\S+)", line)))
        asked = urllib.request.Request(
            url, headers={"Authorization": "Bearer 0123456789abcdef0123456789abcdef"})
        with urllib.request.urlopen(asked, timeout=LONG) as answer:
            text = answer.read().decode()
        assert f'olpager_node_up{{node="127.0.0.1:{port}"}} 1' in text, text
        try:
            urllib.request.urlopen(url, timeout=LONG)
            raise AssertionError("figures without the token")
        except urllib.error.HTTPError as error:
            assert error.code == 401, error
    finally:
        exporter.terminate()
        exporter.communicate(timeout=LONG)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--chart", "--render", "--olmemserver", "--olgpunode", "--olctl", "--olpagestat"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="olpager-helm-") as folder:
        render = renderer(options, folder)
        if render is None:
            print("not tried: neither helm nor Go with sprig is installed (tools/setup --test)")
            return 77
        metrics = os.path.join(folder, "metrics.yaml")
        with open(metrics, "w") as file:
            json.dump({"metrics": {"tokenSecret": "olpager-metrics", "podMonitor": True, "exporter": True},
                       "cdi": {"enabled": True}}, file)
        simulated = os.path.join(options.chart, "values-simulated.yaml")
        schema = json.load(open(os.path.join(options.chart, "values.schema.json")))
        validator = None
        try:
            import jsonschema
            jsonschema.Draft7Validator.check_schema(schema)
            validator = jsonschema.Draft7Validator(schema)
        except ImportError:
            print("python3-jsonschema is not installed: values are not checked")
        for file in (os.path.join(options.chart, "values.yaml"), simulated, metrics):
            if validator:
                wrong = [error.message for error in validator.iter_errors(yaml.safe_load(open(file)))]
                assert not wrong, f"{file}: {wrong}"
        if validator:
            for bad in ({"memserver": {"memory": "lots"}}, {"gpunode": {"prot": 1}}, {"metrics": {"memserverPort": 0}}):
                assert list(validator.iter_errors(bad)), f"allowed: {bad}"

        kubectl = shutil.which("kubectl") is not None
        for files in ([], [simulated], [metrics], [simulated, metrics]):
            done = subprocess.run(render(files), capture_output=True, text=True, timeout=LONG)
            assert done.returncode == 0, done.stderr
            things = [thing for thing in yaml.load_all(done.stdout, Octal) if thing]
            kinds = [thing["kind"] for thing in things]
            assert sorted(kinds) == sorted(["DaemonSet", "Service", "StatefulSet", "Pod"] + (["PodMonitor"] if metrics in files else [])), kinds
            for thing in things:
                if kubectl and thing["kind"] != "PodMonitor":
                    missing = lost(thing, typed(thing))
                    assert not missing, f"{thing['kind']}: Kubernetes has no such field: {missing}"
                spec = thing["spec"].get("template", thing)["spec"] if thing["kind"] not in ("Service", "PodMonitor") else {}
                for volume in spec.get("volumes", []):
                    if "secret" in volume:
                        assert volume["secret"]["defaultMode"] == 0o440 and spec["securityContext"]["fsGroup"], volume
                for container in spec.get("containers", []):
                    mounted = {mount["name"] for mount in container["volumeMounts"]}
                    assert mounted <= {volume["name"] for volume in spec["volumes"]}, container
            if files == [simulated, metrics]:
                for thing in things:
                    if thing["kind"] in ("DaemonSet", "StatefulSet"):
                        started(options, folder, thing)
        for what in ("podMonitor", "exporter"):
            with open(metrics, "w") as file:
                json.dump({"metrics": {what: True}}, file)
            refused = subprocess.run(render([metrics]), capture_output=True, text=True, timeout=LONG)
            assert refused.returncode != 0 and f"metrics.{what} needs metrics.tokenSecret" in refused.stderr, refused
        print(f"rendered by {os.path.basename(render([])[0])}; "
              + ("read by kubectl into Kubernetes' types" if kubectl else "no kubectl: Kubernetes' types are not checked"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
