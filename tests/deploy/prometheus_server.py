#!/usr/bin/env python3
"""The exporter of a node, with what deploy/ has for it, under a real Prometheus on loopback: a memserver, two gpunodes and
programs on the simulated GPU run; Prometheus scrapes over HTTPS with the token, loads the rules, and evaluates the
query of each panel of the dashboard, which has to have series. promtool checks names, rules and the configuration.

prometheus_server.py --source SOURCE --olpagestat P --olrun P --olmemserver P --olgpunode P --fake-nvml FOLDER --program P --long-program P
Exit: 77 where Prometheus is not installed.
"""
import argparse
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

LONG = 90
TOKEN = "0123456789abcdef0123456789abcdef"
MIB = 1 << 20


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.children, self.logs = [], {}
        self.env = {**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_CONFIG_HOME": folder}
        self.over = False

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o600):
        with open(self.path(name), "w") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)

    def start(self, name, line, *command, **env):
        """A daemon, once its log has such a line; what the line's group is."""
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**self.env, **env})
        self.children.append(child)
        log = self.logs[name] = []
        threading.Thread(target=lambda: log.extend(child.stdout), daemon=True).start()
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            for said in list(log):
                if found := re.search(line, said):
                    return found.group(1)
            assert child.poll() is None, f"{name} ended with {child.returncode}: {log}"
            time.sleep(0.05)
        raise AssertionError(f"{name} says no '{line}': {log}")

    def again_and_again(self, *command):
        """A program that runs until this test is over."""
        def run():
            while not self.over:
                done = subprocess.run(command, capture_output=True, text=True, env=self.env)
                if done.returncode != 0 and not self.over:
                    self.logs.setdefault("programs", []).append(done.stdout + done.stderr)
                    return
        threading.Thread(target=run, daemon=True).start()

    def end(self):
        self.over = True
        for child in reversed(self.children):
            child.send_signal(signal.SIGTERM)
        for child in reversed(self.children):
            try:
                child.wait(LONG)
            except subprocess.TimeoutExpired:
                child.kill()


def get(url, token=None, ca=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=ca) if ca else None
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return answer.read().decode()


def refused(url, token, ca, status):
    try:
        get(url, token, ca)
    except urllib.error.HTTPError as error:
        return error.code == status
    return False


def checked_metrics(text, what):
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout + done.stderr, f"{what}: {done.stdout}{done.stderr}"


def dashboard(source):
    """Title and query of each panel; and what Grafana needs of the rest."""
    with open(os.path.join(source, "deploy/grafana/olpager.json")) as file:
        board = json.load(file)
    assert board["uid"] and board["title"] and board["schemaVersion"] >= 36 and "id" not in board
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    queries, ids, taken = [], set(), set()
    for panel in board["panels"]:
        assert panel["id"] not in ids, f"twice: {panel['id']}"
        ids.add(panel["id"])
        place = panel["gridPos"]
        assert 0 <= place["x"] and place["x"] + place["w"] <= 24, place
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over another"
                taken.add((x, y))
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("timeseries", "stat") and panel["title"] and panel["description"], panel
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(refs) == len(set(refs)), refs
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= set(variables), f"{panel['title']}: no variable {used - set(variables)}"
            queries.append((panel["title"], target["expr"]))
    for one in variables.values():
        if one["type"] == "query":
            queries.append((f"variable {one['name']}", re.fullmatch(r"label_values\((\w+), \w+\)", one["definition"]).group(1)))
    return queries


def main():
    parser = argparse.ArgumentParser()
    for name in ("--source", "--olpagestat", "--olrun", "--olmemserver", "--olgpunode", "--fake-nvml", "--program", "--long-program"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    if shutil.which("promtool") is None or shutil.which("prometheus") is None:
        print("not tried: Prometheus is not installed (tools/setup --test)")
        return 77
    rules = os.path.join(options.source, "deploy/prometheus")
    for command in (["check", "rules", "olpager.rules.yml"], ["test", "rules", "olpager.rules.test.yml"],
                    ["check", "config", "--syntax-only", "prometheus.yml"]):
        subprocess.run(["promtool", *command], check=True, cwd=rules)
    queries = dashboard(options.source)

    with tempfile.TemporaryDirectory(prefix="olpager-prometheus-") as folder:
        bench = Bench(options, folder)
        try:
            run(bench, rules, queries)
        except AssertionError:
            for name, log in bench.logs.items():
                print(f"== {name}", *log[-15:], sep="\n", file=sys.stderr)
            raise
        finally:
            bench.end()
    return 0


def run(bench, rules, queries):
    options = bench.options
    token = bench.write("token", TOKEN + "\n")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", bench.path("tls.key"), "-out", bench.path("tls.crt")],
                   check=True, stderr=subprocess.DEVNULL)
    os.chmod(bench.path("tls.key"), 0o600)
    memserver = bench.start("memserver", r"listening on (\S+:\d+)", options.olmemserver, "--config", bench.write("empty.toml", ""), "--listen", "127.0.0.1:0",
                            "--memory", "512MiB", "--reserve", "64MiB", "--lock", "off", "--cgroup", "none")
    gpunodes = [bench.start(f"gpunode {i}", r"listening at (\S+)", options.olgpunode, "--config", bench.path("empty.toml"), "--listen", "127.0.0.1:0",
                            "--driver", "sim", "--vram", "64MiB", "--memory", "512MiB", "--cache", "none", LD_LIBRARY_PATH=options.fake_nvml) for i in range(2)]
    exporter = bench.start("exporter", r"figures at (\S+)", options.olpagestat, "--prometheus", "127.0.0.1:0", "--prometheus-token", token, "--prometheus-cert",
                           bench.path("tls.crt"), "--prometheus-cert-key", bench.path("tls.key"), "--folder", bench.path("olpager"),
                           *(word for node in (memserver, *gpunodes) for word in ("--node", node)))
    assert exporter.startswith("https://127.0.0.1:"), exporter
    bench.again_and_again(options.olrun, "--driver", "sim", "--vram", "16MiB", "--host", "96MiB", "--memserver", memserver, "--", options.program,
                          "--bytes", str(384 * MIB))
    # One that runs while Prometheus asks several times: a rate takes two figures of the same process.
    bench.again_and_again(options.olrun, "--gpunode", gpunodes[0], "--gpunode", gpunodes[1], "--view", "unified", "--", options.long_program,
                          "stream", "--bytes", str(96 * MIB), "--rounds", "20000")
    port = free_port()
    with open(os.path.join(rules, "prometheus.yml")) as file:
        config = file.read()
    config = re.sub(r"scrape_interval: \S+", "scrape_interval: 1s\n  evaluation_interval: 1s", config)
    config = re.sub(r"credentials_file: \S+", f"credentials_file: {token}", config)
    config = re.sub(r"ca_file: \S+", f"ca_file: {bench.path('tls.crt')}", config)
    config = re.sub(r"- box1\S+\n\s+- box2\S+", f"- {exporter.split('/')[2]}", config)
    bench.write("prometheus.yml", config)
    shutil.copy(os.path.join(rules, "olpager.rules.yml"), bench.path("olpager.rules.yml"))
    bench.start("prometheus", r"(Server is ready)", "prometheus", f"--config.file={bench.path('prometheus.yml')}", f"--storage.tsdb.path={bench.path('tsdb')}",
                f"--web.listen-address=127.0.0.1:{port}", GOMAXPROCS="2")

    # Who asks without the token, or with another one, learns nothing.
    ca = bench.path("tls.crt")
    assert refused(exporter, None, ca, 401) and refused(exporter, TOKEN[:-1] + "0", ca, 401)
    page = get(exporter, TOKEN, ca)
    checked_metrics(page, "the exporter's page")
    assert f'olpager_node_up{{node="{memserver}"}} 1' in page, page
    assert refused(exporter.replace("/metrics", "/secret"), TOKEN, ca, 404)

    def ask(expression):
        query = urllib.parse.urlencode({"query": expression})
        try:
            return json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?{query}"))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    waiting = dict.fromkeys(queries)
    end = time.monotonic() + LONG
    while waiting and time.monotonic() < end:
        for title, expression in list(waiting):
            plain = expression.replace("$__rate_interval", "20s")
            plain = re.sub(r"\$\w+", ".*", plain)
            answer = ask(plain)
            assert answer["status"] == "success", answer
            if answer["data"]["result"]:
                del waiting[(title, expression)]
        time.sleep(1)
    if waiting:
        print(get(exporter, TOKEN, ca), file=sys.stderr)
    assert not waiting, f"no series: {list(waiting)}"

    loaded = json.loads(get(f"http://127.0.0.1:{port}/api/v1/rules"))["data"]["groups"]
    every = [rule for group in loaded for rule in group["rules"]]
    assert len(every) >= 13 and all(rule["health"] == "ok" for rule in every), every
    target = json.loads(get(f"http://127.0.0.1:{port}/api/v1/targets"))["data"]["activeTargets"][0]
    assert target["health"] == "up" and not target["lastError"], target

    # A daemon that is gone is told of.
    bench.children[0].send_signal(signal.SIGKILL)
    end = time.monotonic() + LONG
    while not ask("olpager_node_up == 0")["data"]["result"]:
        assert time.monotonic() < end, "a killed memserver is up"
        time.sleep(1)
    assert "programs" not in bench.logs or "memserver" in str(bench.logs["programs"]), bench.logs["programs"]
    print(f"{len(queries)} queries have series; {len(every)} rules; names checked by promtool")


if __name__ == "__main__":
    sys.exit(main())
