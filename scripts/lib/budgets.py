"""Checks the tree's size budgets, without a compiler: function and file lengths,
parameters, header openings, directory READMEs.

    budgets.py [ROOT]

Functions are found by their braces, comments and literals blanked first; a function's
length runs from the first line of its signature to its closing brace.
"""

import re
import subprocess
import sys
from pathlib import Path

MAX_FUNCTION_LINES = 70
P90_FUNCTION_LINES = 25
MAX_PARAMETERS = 6
MAX_FILE_LINES = 700
WANTED_FILE_LINES = 400
MAX_HEADER_OPENING = 12
MAX_DIRECTORY_README = 40

NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
CONTROL = re.compile(r"^(if|for|while|switch|catch|do|else|try|return)\b")
TYPE_OR_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def strip(text):
    text = NOISE.sub(blank, text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.MULTILINE)


def parameter_list(header):
    """The text between the parentheses of a function's parameters, or None."""
    depth, start = 0, None
    for i, char in enumerate(header):
        if char == "(":
            if depth == 0:
                start = i
            depth += 1
        elif char == ")" and depth:
            depth -= 1
            before = header[:start].rstrip()
            if depth == 0 and not re.search(r"\b(operator|noexcept|alignas|decltype|requires|__attribute__)$", before):
                return header[start + 1 : i]
    return None


def count_parameters(header):
    inside = parameter_list(header)
    if inside is None or inside.strip() in ("", "void"):
        return 0
    depth, count = 0, 1
    for i, char in enumerate(inside):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and inside[i - 1] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            count += 1
    return count


def kind_of(header):
    """What a brace opens at namespace or class level: 'function', 'scope' or 'other'."""
    # A member initialiser a_{1} of a constructor: the body is still to come.
    if re.search(r"\)\s*(noexcept\s*)?:[^:].*\w\s*$", header, re.DOTALL):
        return "initialiser"
    if "(" not in header or re.match(r"(template\s*<[^;]*>\s*)?(class|struct|union|enum|namespace)\b", header):
        return "scope" if TYPE_OR_SCOPE.search(header) else "other"
    before_parenthesis = re.sub(r"\boperator\s*\S+", "", header.split("(")[0])
    return "other" if "=" in before_parenthesis else "function"


class Functions:
    """One pass over a stripped file; collects (first line, lines, parameters, signature)."""

    def __init__(self, text):
        self.text = text
        self.found = []
        self.stack = []  # (kind, start of header)
        self.start = 0  # where the current header begins

    def open_brace(self, i):
        if self.stack and self.stack[-1][0] != "scope":
            self.stack.append(("inner", None))
            return
        header = re.sub(r"^(\s*(public|private|protected)\s*:)+", "", self.text[self.start : i])
        offset = i - len(header.lstrip())
        self.stack.append((kind_of(header.strip()), offset))
        if self.stack[-1][0] == "scope":
            self.start = i + 1

    def close_brace(self, i):
        kind, offset = self.stack.pop() if self.stack else ("inner", None)
        if kind == "function":
            body = self.text[offset : i + 1]
            header = " ".join(self.text[offset:].split("{", 1)[0].split())
            first = self.text.count("\n", 0, offset) + 1
            self.found.append((first, body.count("\n") + 1, count_parameters(header), header))
        if kind in ("function", "scope", "other"):
            self.start = i + 1

    def collect(self):
        for i, char in enumerate(self.text):
            if char == "{":
                self.open_brace(i)
            elif char == "}":
                self.close_brace(i)
            elif char == ";" and (not self.stack or self.stack[-1][0] == "scope"):
                self.start = i + 1
        return self.found


def functions_of(text):
    return Functions(strip(text)).collect()


def header_opening(text):
    """Number of comment lines at the top of a header."""
    count = 0
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        count += 1
    return count


def check_cpp(name, text, lengths):
    for first, lines, parameters, signature in functions_of(text):
        lengths.append(lines)
        where = f"{name}:{first}: {signature[:60]}"
        if lines > MAX_FUNCTION_LINES:
            yield f"{where}: {lines} lines, at most {MAX_FUNCTION_LINES}"
        if parameters > MAX_PARAMETERS:
            yield f"{where}: {parameters} parameters, at most {MAX_PARAMETERS}"
    if name.endswith(".h"):
        opening = header_opening(text)
        if not 1 <= opening <= MAX_HEADER_OPENING:
            wanted = f"wanted 1 to {MAX_HEADER_OPENING}: what, owner, thread, never"
            yield f"{name}:1: opens with {opening} comment lines; {wanted}"


def check_file(name, text, lengths):
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{name}: {lines} lines, at most {MAX_FILE_LINES}"
    if name.endswith((".h", ".c", ".cc")):
        yield from check_cpp(name, text, lengths)
    if name.endswith("/README.md") and lines > MAX_DIRECTORY_README:
        yield f"{name}: {lines} lines, a directory README has at most {MAX_DIRECTORY_README}"


def is_test(name):
    return name.startswith(("tests/", "src/sim/")) or bool(re.search(r"(_test|_suite|_rig)\.\w+$|/test_\w+\.py$", name))


def tracked_and_new(root):
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if (root / name).is_file()]
    endings = (".h", ".c", ".cc", ".py", ".pyi", ".md")
    return [name for name in names if name.endswith(endings) or name.startswith("scripts/")]


def report(files, lengths):
    lengths.sort()
    p90 = lengths[len(lengths) * 9 // 10] if lengths else 0
    long_files = [name for name, text in files.items() if text.count("\n") > WANTED_FILE_LINES]
    code = {n: t.count("\n") for n, t in files.items() if n.endswith((".h", ".c", ".cc", ".py"))}
    tests = sum(lines for name, lines in code.items() if is_test(name))
    source = sum(code.values()) - tests
    longest = lengths[-1] if lengths else 0
    print(f"budgets: {len(lengths)} functions: p90 {p90} lines (at most {P90_FUNCTION_LINES}), longest {longest}")
    print(f"budgets: {tests} test lines to {source} source lines: {tests / max(source, 1):.2f} (wanted 0.80)")
    if long_files:
        print(f"budgets: over {WANTED_FILE_LINES} lines: {', '.join(long_files)}")
    return [] if p90 <= P90_FUNCTION_LINES else [f"function length p90 is {p90}, at most {P90_FUNCTION_LINES}"]


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    files = {name: (root / name).read_text() for name in tracked_and_new(root)}
    lengths = []
    problems = [problem for name, text in files.items() for problem in check_file(name, text, lengths)]
    problems += report(files, lengths)
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
