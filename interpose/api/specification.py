"""Reads the specification of the driver API (*.api) into objects and checks it.

The language is described in README.md beside this file. Everything that is wrong in a file is reported as
`file:line: what`, by SpecificationError.
"""

import os
import re

FORWARD = ("cached", "async", "sync", "refuse")
LOCAL = ("pass", "wrap", "own")

# Handle types of the driver API; a parameter of such a type (or a pointer to it) carries handles.
HANDLE_TYPES = frozenset(
    """CUcontext CUmodule CUfunction CUlibrary CUkernel CUarray CUmipmappedArray CUtexref CUsurfref CUevent CUstream
    CUgraphicsResource CUtexObject CUsurfObject CUexternalMemory CUexternalSemaphore CUgraph CUgraphNode CUgraphExec
    CUmemoryPool CUuserObject CUgreenCtx CUdevResourceDesc CUlinkState CUmemGenericAllocationHandle
    CUgraphConditionalHandle CUasyncCallbackHandle CUlogsCallbackHandle CUlogIterator""".split())

# What a size may call, with the number of arguments: interpose/api/attribute_bytes.h has those that follow from an attribute or a type. What
# an image has tells the caller's memory alone.
SIZE_HELPERS = {
    "graphMemoryAttributeBytes": 1,
    "pointerAttributeBytes": 1,
    "poolAttributeBytes": 1,
    "rangeHandleBytes": 1,
    "shareableHandleBytes": 1,
    "moduleImageBytes": 1,
}

# What ranges(...) may call, with the number of arguments.
RANGE_EXTRACTORS = {
    "fill2d": 4,
    "copy2d": 1,
    "copy3d": 1,
    "copy3dPeer": 1,
    "copyBatch": 4,
    "copy3dBatch": 2,
    "decompressBatch": 2,
    "memOps": 2,
}

# Annotations of a parameter: word -> (may carry [expression], may carry (expression)).
ANNOTATIONS = {
    "in": (True, False), "out": (True, False), "inout": (True, False),
    "string": (False, False), "static": (True, False), "each": (True, False), "nested": (False, False),
    "kernel": (False, False), "opaque": (False, False), "opt": (False, False), "new": (False, False),
    "gone": (False, False), "address": (False, False), "host": (True, False), "callback": (False, False),
    "stream": (False, True), "read": (True, False), "write": (True, False), "readwrite": (True, False),
    "ranges": (False, True), "word": (False, False), "name": (False, False), "path": (False, False),
    "aligned": (True, False),
}
ACCESS = ("read", "write", "readwrite")


# What else is known of a function: word -> what it says. A line of a function's has some of them.
FACTS = {
    "blocking": "returns when its work is done",
    "changing": "is cached, but its answer changes without a call that says so: asked each time",
    "contextless": "answers the same whichever context is current",
    "forgets": "makes answers wrong that are remembered",
    "changes-kernels": "makes wrong what is remembered of kernels",
    "tells-on-failure": "has its results where it fails, too",
    "any-memory": "is made by a driver between whatever memory has its addresses",
    "either-side": "copies, and either side may be host memory",
    "has-async": "does what the function with Async behind its name does in a stream",
    "uses-memory": "may take device memory, or give some back, beside plain allocations",
    "tells-failures": "says that work is done or brings what work has made, and leaves nothing half-done where it tells of "
                      "what failed before. What makes or ends something does not tell: done at the worker, it would be taken "
                      "for not done here",
    "occupancy": "asks how much of a kernel fits on a device",
    "ends-context": "takes down the context that is its first argument",
    "ends-primary": "takes down the primary context of the device that is its first argument",
    "releases-primary": "takes down the primary context of the device that is its first argument, unless others have retained "
                        "it too",
    "captures": "begins or ends a capture",
    "overtakes": "makes something new, or asks what no work in a stream changes: it may be made before what it is behind. What is "
                 "cached does so by nature",
    "records": "makes its event stand for what is before it",
    "asks": "answers at once whether work is done",
    "exports": "gives memory or events of a device's to other programs, or takes theirs",
    "interruptible": "waits for others, or takes no lock: signals of the program's come through meanwhile. So they do where it is "
                     "blocking",
    "restartable": "waits for nothing but memory before it has done anything, so that it may be begun again",
    "quiet": "waits for nothing, ends nothing, and tells the program nothing of what is before it",
}


class SpecificationError(Exception):
    """A mistake in a specification file; the message begins with file:line."""

    def __init__(self, file, line, what):
        super().__init__(f"{os.path.basename(file)}:{line}: {what}")


class Expression:
    """A size or a call, as a tree: ('int', n) | ('name', n) | ('deref', e) | ('member', e, n) | ('call', n, [e]) |
    ('+' | '-' | '*', e, e)."""

    TOKEN = re.compile(r"\s*(->|[A-Za-z_]\w*|\d+|[-+*(),])")

    def __init__(self, text, where):
        self.text = text.strip()
        self._where = where
        self._tokens = self._tokenize(self.text)
        self._at = 0
        self.tree = self._sum()
        if self._peek() is not None:
            self._fail(f"'{self._peek()}' is unexpected in '{self.text}'")

    def _fail(self, what):
        raise SpecificationError(*self._where, what)

    def _tokenize(self, text):
        tokens, at = [], 0
        while at < len(text):
            match = self.TOKEN.match(text, at)
            if not match:
                self._fail(f"can't read expression '{text}' at '{text[at:]}'")
            tokens.append(match.group(1))
            at = match.end()
        return tokens

    def _peek(self):
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, wanted=None):
        token = self._peek()
        if token is None or (wanted is not None and token != wanted):
            self._fail(f"'{wanted or 'something'}' is missing in '{self.text}'")
        self._at += 1
        return token

    def _sum(self):
        left = self._product()
        while self._peek() in ("+", "-"):
            left = (self._take(), left, self._product())
        return left

    def _product(self):
        left = self._unary()
        while self._peek() == "*":
            left = (self._take(), left, self._unary())
        return left

    def _unary(self):
        if self._peek() == "*":
            self._take()
            return ("deref", self._unary())
        if self._peek() == "(":
            self._take()
            inner = self._sum()
            self._take(")")
            return inner
        token = self._take()
        if token.isdigit():
            return ("int", int(token))
        if not re.match(r"[A-Za-z_]", token):
            self._fail(f"'{token}' is unexpected in '{self.text}'")
        if self._peek() == "(":
            self._take()
            arguments = [self._sum()]
            while self._peek() == ",":
                self._take()
                arguments.append(self._sum())
            self._take(")")
            return ("call", token, arguments)
        node = ("name", token)
        while self._peek() == "->":
            self._take()
            node = ("member", node, self._take())
        return node

    def names(self):
        """Parameters that it mentions."""
        found = []

        def walk(node):
            kind = node[0]
            if kind == "name":
                found.append(node[1])
            elif kind == "member" or kind == "deref":
                walk(node[1])
            elif kind == "call":
                for argument in node[2]:
                    walk(argument)
            elif kind in "+-*":
                walk(node[1])
                walk(node[2])

        walk(self.tree)
        return found

    def calls(self):
        """(helper, number of arguments) for each call in it."""
        found = []

        def walk(node):
            if node[0] == "call":
                found.append((node[1], len(node[2])))
                for argument in node[2]:
                    walk(argument)
            elif node[0] in ("member", "deref"):
                walk(node[1])
            elif node[0] in "+-*":
                walk(node[1])
                walk(node[2])

        walk(self.tree)
        return found

    def cpp(self):
        """The C++ of it in 64 bits."""
        return self.emit(self.tree)

    @staticmethod
    def emit(node):
        """The C++ of a node. Products saturate: an absurd argument can't wrap to a small range."""
        emit = Expression.emit
        kind = node[0]
        if kind == "int":
            return f"{node[1]}ull"
        if kind == "name":
            return node[1]
        if kind == "deref":
            return f"(*{emit(node[1])})"
        if kind == "member":
            return f"{emit(node[1])}->{node[2]}"
        if kind == "call":
            return f"{node[1]}({', '.join(emit(a) for a in node[2])})"
        if kind == "*":
            return f"saturatingProduct({emit(node[1])}, {emit(node[2])})"
        return f"({emit(node[1])} {kind} {emit(node[2])})"


class Annotation:
    def __init__(self, word, bracket, parenthesis):
        self.word = word
        self.bracket = bracket          # Expression in [ ], or None
        self.parenthesis = parenthesis  # Expression in ( ), or None

    def __str__(self):
        text = self.word
        if self.parenthesis:
            text += f"({self.parenthesis.text})"
        if self.bracket:
            text += f"[{self.bracket.text}]"
        return text


class Parameter:
    def __init__(self, type_, name, annotations, line):
        self.type = type_
        self.name = name
        self.annotations = annotations
        self.line = line

    def get(self, word):
        for annotation in self.annotations:
            if annotation.word == word:
                return annotation
        return None

    @property
    def is_pointer(self):
        return self.type.endswith("*")

    @property
    def base_type(self):
        return self.type.replace("const", "").replace("*", "").strip()

    @property
    def is_handle(self):
        return self.base_type in HANDLE_TYPES

    def __str__(self):
        notes = " ".join(str(a) for a in self.annotations)
        return f"{self.type} {self.name}" + (f" : {notes}" if notes else "")


class Symbol:
    """One exported name of a form."""

    def __init__(self, name, version, form):
        self.name = name
        self.version = version
        self.form = form

    @property
    def per_thread(self):
        return self.name.endswith(("_ptds", "_ptsz"))

    @property
    def enumerator(self):
        return enumerator(self.name)

    @property
    def function(self):
        return self.form.function

    @property
    def local(self):
        return self.form.local


# Addresses of 32 bits, as CUDA 3.1 and before had them: no address of the range fits.
SHORT_ADDRESSES = frozenset(("CUdeviceptr_v1", "CUDA_MEMCPY2D_v1", "CUDA_MEMCPY3D_v1"))


class Form:
    """One signature of a function, with the symbols that have it."""

    def __init__(self, function, local, line):
        self.function = function
        self.local = local
        self.line = line
        self.symbols = []
        self.parameters = []

    @property
    def short_addresses(self):
        return any(p.base_type in SHORT_ADDRESSES for p in self.parameters)

    @property
    def forward(self):
        """How it is forwarded: as the function, or not at all, as its addresses have no room."""
        return "refuse" if self.short_addresses else self.function.forward

    def signature(self):
        return ", ".join(f"{p.type} {p.name}" for p in self.parameters)

    def types(self):
        return ", ".join(p.type for p in self.parameters)

    def parameter(self, name):
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        return None

    def stream(self):
        """The expression for the stream that it is ordered in, or None."""
        for parameter in self.parameters:
            note = parameter.get("stream")
            if note:
                return note.parenthesis.cpp() if note.parenthesis else parameter.name
        return None

    def accesses(self):
        """[(parameter, annotation)] of what it reads and writes in device memory."""
        return [(p, a) for p in self.parameters for a in p.annotations if a.word in ACCESS or a.word == "ranges"]


class Function:
    def __init__(self, name, file, line):
        self.name = name
        self.file = file
        self.line = line
        self.forward = None
        self.local = None
        self.facts = []  # words of FACTS
        self.forms = []

    @property
    def blocking(self):
        return self.has("blocking")

    def has(self, fact):
        assert fact in FACTS
        return fact in self.facts

    def symbols(self):
        return [s for form in self.forms for s in form.symbols]


class Export:
    """A name that libcuda exports and cuda.h doesn't declare."""

    def __init__(self, name, object_bytes):
        self.name = name
        self.object_bytes = object_bytes  # 0: a function

    @property
    def enumerator(self):
        return enumerator(self.name)


class Specification:
    def __init__(self):
        self.functions = []
        self.exports = []

    def symbols(self):
        """Symbols of cuda.h, in order of their names."""
        return sorted((s for f in self.functions for s in f.symbols()), key=lambda s: s.name)

    def all_names(self):
        """Every exported name in the order of enum Symbol: [Symbol or Export]."""
        return sorted(self.symbols() + self.exports, key=lambda s: s.name)

    def text(self):
        """The specification written out again; reading that gives the same specification."""
        lines = []
        for function in self.functions:
            lines += [f"function {function.name}", f"  forward {function.forward}", f"  local {function.local}"]
            if function.facts:
                lines.append("  " + " ".join(function.facts))
            for form in function.forms:
                names = " ".join(f"{s.name}@{s.version}" for s in form.symbols)
                lines.append(f"  form {names}" + (f" local {form.local}" if form.local != function.local else ""))
                lines += [f"    {parameter}" for parameter in form.parameters]
            lines.append("")
        for export in self.exports:
            kind = f"object {export.object_bytes}" if export.object_bytes else "function"
            lines.append(f"export {export.name} {kind}")
        return "\n".join(lines) + "\n"


def enumerator(name):
    return "k" + name[0].upper() + name[1:]


def _split_annotations(text, where):
    """Splits at spaces outside brackets."""
    items, depth, current = [], 0, ""
    for character in text:
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
            if depth < 0:
                raise SpecificationError(*where, f"unbalanced brackets in '{text}'")
        if character.isspace() and depth == 0:
            if current:
                items.append(current)
            current = ""
        else:
            current += character
    if depth != 0:
        raise SpecificationError(*where, f"unbalanced brackets in '{text}'")
    if current:
        items.append(current)
    return items


def _parse_annotation(item, where):
    match = re.match(r"^([a-z]+)(\((.*)\))?(\[(.*)\])?$", item)
    if not match or match.group(1) not in ANNOTATIONS:
        raise SpecificationError(*where, f"unknown annotation '{item}'")
    word, bracket_ok, parenthesis_ok = match.group(1), *ANNOTATIONS[match.group(1)]
    if match.group(4) and not bracket_ok:
        raise SpecificationError(*where, f"'{word}' takes no [size]")
    if match.group(2) and not parenthesis_ok:
        raise SpecificationError(*where, f"'{word}' takes no (expression)")
    if word in ACCESS and not match.group(4):
        raise SpecificationError(*where, f"'{word}' needs the number of bytes: {word}[...]")
    if word == "aligned" and not match.group(4):
        raise SpecificationError(*where, "'aligned' needs the number of bytes: aligned[...]")
    if word == "ranges" and not match.group(2):
        raise SpecificationError(*where, "'ranges' needs an extractor: ranges(copy2d(pCopy))")
    bracket = Expression(match.group(5), where) if match.group(4) else None
    parenthesis = Expression(match.group(3), where) if match.group(2) else None
    return Annotation(word, bracket, parenthesis)


def _parse_parameter(text, where):
    declaration, _, notes = text.partition(":")
    match = re.match(r"^((?:const )?(?:(?:unsigned|signed) )?[A-Za-z_]\w*(?: (?:long|short|char|int)\b)*)(\s*\*+\s*|\s+)"
                     r"([A-Za-z_]\w*)$", declaration.strip())
    if not match:
        raise SpecificationError(*where, f"can't read parameter '{text}'; expected 'type name : annotations'")
    annotations = [_parse_annotation(item, where) for item in _split_annotations(notes.strip(), where)]
    return Parameter(match.group(1) + match.group(2).strip(), match.group(3), annotations, where[1])


def _parse_form(text, function, where):
    words = text.split()
    local = function.local
    if "local" in words:
        at = words.index("local")
        if at + 2 != len(words) or words[at + 1] not in LOCAL:
            raise SpecificationError(*where, f"expected 'local {'|'.join(LOCAL)}' at the end of '{text}'")
        local = words[at + 1]
        words = words[:at]
    form = Form(function, local, where[1])
    for word in words:
        match = re.match(r"^(cu\w+)@(\d+)$", word)
        if not match:
            raise SpecificationError(*where, f"can't read symbol '{word}'; expected 'symbol@version'")
        form.symbols.append(Symbol(match.group(1), int(match.group(2)), form))
    if not form.symbols:
        raise SpecificationError(*where, "a form needs at least one symbol@version")
    return form


def _check_form(form, file):
    names = [p.name for p in form.parameters]
    for index, parameter in enumerate(form.parameters):
        where = (file, parameter.line)
        if parameter.name in names[:index]:
            raise SpecificationError(*where, f"parameter '{parameter.name}' occurs twice")
        words = [a.word for a in parameter.annotations]
        for word in set(words):
            if words.count(word) > 1:
                raise SpecificationError(*where, f"'{word}' occurs twice")
        if sum(word in ("in", "out", "inout") for word in words) > 1:
            raise SpecificationError(*where, f"parameter '{parameter.name}' has two directions")
        if parameter.is_pointer and not set(words) & {"in", "out", "inout", "opaque", "host", "address"}:
            raise SpecificationError(*where, f"pointer '{parameter.name}' needs a direction: in, out or inout")
        if not parameter.is_pointer and set(words) & {"in", "out", "inout"}:
            raise SpecificationError(*where, f"'{parameter.name}' is passed by value and has no direction")
        if parameter.base_type.startswith("CUdeviceptr") and not set(words) & {*ACCESS, "address", "ranges", "in"}:
            raise SpecificationError(*where, f"device pointer '{parameter.name}' needs read, write, readwrite or address")
        if "name" in words and not {"string", "in"} <= set(words):
            raise SpecificationError(*where, f"'{parameter.name}' is no text of the caller's: 'name' goes with 'in string'")
        if "stream" in words and parameter.get("stream").parenthesis is None and parameter.type != "CUstream":
            raise SpecificationError(*where, f"'{parameter.name}' is no CUstream; say stream(expression)")
        for annotation in parameter.annotations:
            for expression in (annotation.bracket, annotation.parenthesis):
                if expression is None:
                    continue
                for name in expression.names():
                    if name not in names:
                        raise SpecificationError(*where, f"'{name}' in '{annotation}' is no parameter")
                known = RANGE_EXTRACTORS if annotation.word == "ranges" else SIZE_HELPERS
                for call, count in expression.calls():
                    if known.get(call) != count:
                        raise SpecificationError(*where, f"'{call}' with {count} arguments is unknown in '{annotation}'")
                if annotation.word == "ranges" and expression.tree[0] != "call":
                    raise SpecificationError(*where, f"'{annotation}' must call an extractor")
    if form.local == "wrap" and not form.accesses():
        raise SpecificationError(file, form.line, "'wrap' needs a parameter with read, write, readwrite or ranges")
    if form.local == "pass" and form.accesses() and not form.short_addresses:
        raise SpecificationError(file, form.line, "a form that reads or writes device memory can't be 'pass'")


def _finish(function):
    where = (function.file, function.line)
    if function.forward is None:
        raise SpecificationError(*where, f"'{function.name}' lacks 'forward {'|'.join(FORWARD)}'")
    if not function.forms:
        raise SpecificationError(*where, f"'{function.name}' has no form")
    if function.has("changing") and function.forward != "cached":
        raise SpecificationError(*where, f"'{function.name}' is 'changing' and not cached")
    for form in function.forms:
        _check_form(form, function.file)
        for symbol in form.symbols:
            if not re.fullmatch(re.escape(function.name) + r"(_v\d+)?(_ptsz|_ptds)?", symbol.name):
                raise SpecificationError(function.file, form.line,
                                         f"symbol '{symbol.name}' does not belong to '{function.name}'")


def parse_text(text, file, specification):
    """Adds what `text` says to `specification`."""
    function, form = None, None
    for number, raw in enumerate(text.splitlines(), 1):
        where = (file, number)
        line = raw.split("#", 1)[0].rstrip()
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip(" "))
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if indent == 0 and word == "function":
            if function:
                _finish(function)
            if not re.fullmatch(r"cu[A-Z]\w*", rest):
                raise SpecificationError(*where, f"'{rest}' is no function name")
            function, form = Function(rest, file, number), None
            specification.functions.append(function)
        elif indent == 0 and word == "export":
            match = re.fullmatch(r"(cu\w+) (?:function|object ([1-9]\d*))", rest)
            if not match:
                raise SpecificationError(*where, "expected 'export name function' or 'export name object bytes'")
            specification.exports.append(Export(match.group(1), int(match.group(2) or 0)))
        elif indent == 2 and function and word == "forward" and not function.forms:
            if rest not in FORWARD:
                raise SpecificationError(*where, f"'{rest}' is none of {', '.join(FORWARD)}")
            function.forward = rest
        elif indent == 2 and function and word == "local" and not function.forms:
            if rest not in LOCAL:
                raise SpecificationError(*where, f"'{rest}' is none of {', '.join(LOCAL)}")
            function.local = rest
        elif indent == 2 and function and word in FACTS and not function.facts and not function.forms:
            function.facts = line.split()
            for fact in function.facts:
                if fact not in FACTS:
                    raise SpecificationError(*where, f"'{fact}' is no fact about functions: {', '.join(FACTS)}")
                if function.facts.count(fact) > 1:
                    raise SpecificationError(*where, f"'{fact}' occurs twice")
        elif indent == 2 and function and word == "form":
            if function.local is None:
                raise SpecificationError(*where, f"'{function.name}' lacks 'local {'|'.join(LOCAL)}' before its forms")
            form = _parse_form(rest, function, where)
            function.forms.append(form)
        elif indent == 4 and form:
            form.parameters.append(_parse_parameter(line.strip(), where))
        else:
            raise SpecificationError(*where, f"can't read '{line.strip()}' here")
    if function:
        _finish(function)


def check(specification, file):
    """What no single file shows: names that occur twice."""
    seen = set()
    for function in specification.functions:
        if function.name in seen:
            raise SpecificationError(function.file, function.line, f"function '{function.name}' occurs twice")
        seen.add(function.name)
    seen = set()
    for name, where in ([(s.name, (f.file, f.line)) for f in specification.functions for s in f.symbols()] +
                        [(e.name, (file, 0)) for e in specification.exports]):
        if name in seen:
            raise SpecificationError(*where, f"symbol '{name}' occurs twice")
        seen.add(name)


def read_files(paths):
    specification = Specification()
    for path in paths:
        with open(path, encoding="utf-8") as stream:
            parse_text(stream.read(), path, specification)
    specification.functions.sort(key=lambda f: f.name)
    check(specification, paths[-1] if paths else "")
    return specification
