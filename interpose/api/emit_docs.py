"""The coverage table: function, versions, what is done with it, and the device memory that it uses."""


def coverage_md(spec):
    functions = spec.functions
    symbols = spec.symbols()
    count = {kind: sum(s.local == kind for s in symbols) for kind in ("pass", "wrap", "own")}
    out = f"""# Coverage of the driver API

Generated from `interpose/api/*.api`. {len(functions)} functions of `cuda.h` and `cudaProfiler.h` with {len(symbols)} symbols, and
{len(spec.exports)} further names that `libcuda.so.1` exports. In local mode {count["pass"]} symbols jump to the driver (pass),
{count["wrap"]} make the device memory that they use resident first (wrap), {count["own"]} are the project's own functions (own).
Forwarded: `cached` is answered by the client, `async` sent one way, `sync` a round trip, `refuse` not offered.

| function | symbols (version) | local | forwarded | device memory |
|---|---|---|---|---|
"""
    for function in functions:
        names = ", ".join(f"{s.name} ({s.version})" for s in function.symbols())
        local = []
        for form in function.forms:
            if form.local not in local:
                local.append(form.local)
        memory = []
        for form in function.forms:
            for parameter, annotation in form.accesses():
                text = f"`{parameter.name}` {annotation}" if annotation.word != "ranges" else f"`{annotation}`"
                if text not in memory:
                    memory.append(text)
            for parameter in form.parameters:
                text = f"`{parameter.name}` named"
                if parameter.get("address") and parameter.get("out") is None and text not in memory:
                    memory.append(text)
        blocking = ", blocks" if function.blocking else ""
        out += f"| {function.name} | {names} | {', '.join(local)} | {function.forward}{blocking} | {'; '.join(memory)} |\n"
    out += "\n## Names that cuda.h does not declare\n\n"
    out += "They are exported; functions jump to the driver.\n\n"
    out += ", ".join(e.name + (" (object)" if e.object_bytes else "") for e in spec.exports) + "\n"
    return out
