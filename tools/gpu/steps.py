"""Where the time of the pager's own threads goes: `olpagestat --trace` of a program, summed up.

steps.py TRACE [TRACE...]: a table for each lane with steps. A step's time is its own: that of steps within it is theirs.
"""
import json
import sys


def lanes(path):
    """{lane: {"seconds": of the trace, "steps": {name: [count, seconds]}, "extents": moves that ended meanwhile}} of the lanes with steps."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names, spans, moves = {}, {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X" and event.get("cat") == "step":
            spans.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"], event["name"]))
        elif event["ph"] == "e":
            moves[event["name"]] = moves.get(event["name"], 0) + 1
    found = {}
    for key, steps in spans.items():
        steps.sort()
        own, open_steps = {}, []
        for begin, minus, name in steps:
            end = begin - minus
            while open_steps and open_steps[-1][0] <= begin:
                open_steps.pop()
            if open_steps:
                own[open_steps[-1][1]][1] -= (end - begin) / 1e6
            count = own.setdefault(name, [0, 0.0])
            count[0] += 1
            count[1] += (end - begin) / 1e6
            open_steps.append((end, name))
        seconds = (max(begin - minus for begin, minus, _ in steps) - steps[0][0]) / 1e6
        own["other"] = [0, seconds - sum(time for _, time in own.values())]
        found[names.get(key, "thread") + f" ({key[1]})"] = {"seconds": seconds, "steps": own, "moves": moves}
    return found


def table(path):
    lines = []
    for lane, figures in lanes(path).items():
        seconds = figures["seconds"]
        if seconds < 0.1:
            continue
        rates = ", ".join(f"{name} {count / seconds:.0f}" for name, count in sorted(figures["moves"].items()))
        lines.append(f"{lane}: {seconds:.2f} s; a second: {rates}")
        for name, (count, time) in sorted(figures["steps"].items(), key=lambda entry: -entry[1][1]):
            lines.append(f"  {name:<18} {100 * time / seconds:6.1f} %  {count / seconds:9.0f} a second  {1e6 * time / max(1, count):8.1f} us")
    return "\n".join(lines)


if __name__ == "__main__":
    for trace in sys.argv[1:]:
        print(table(trace))
