#!/usr/bin/env python3
"""What --completion makes for bash, and for zsh where it is installed: every option of --help is completed, commands and their options too, files where an option takes one.

completion.py PROGRAM [COMMAND]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

LONG = 30
program, command = sys.argv[1], sys.argv[2:]
name = os.path.basename(program)


def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=LONG, stdin=subprocess.DEVNULL).stdout


def options(*of):
    return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", run(program, *of, "--help"), re.M))


made = run(program, "--completion", "bash")


def completed(*words):
    asked = 'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"; printf "%s\\n" "${COMPREPLY[@]}"'
    return set(run("bash", "--norc", "-c", asked, "bash", made, name, *words).split())


assert completed("") >= options() | set(command), completed("")
assert completed("--he") == {"--help"}, completed("--he")
for one in command:
    assert completed(one, "") >= options(one), completed(one, "")
with tempfile.TemporaryDirectory() as folder:
    open(os.path.join(folder, "thing.key"), "w").close()
    there = os.path.join(folder, "thing.key")
    files = re.findall(r"^  (?:-\w,)?(--[\w-]+) FILE", run(program, *command[:1], "--help"), re.M)
    for option in files:
        assert completed(*command[:1], option, folder + "/th") == {there}, option
    if name == "olrun":
        assert files, "olrun names a key file"
        assert completed("--vram", "") == {""} or completed("--vram", "") == set(), completed("--vram", "")
        # The program's own words are not olrun's.
        assert completed("--", folder + "/th") == {there}
        assert completed("--check", "--st") == {"--stats"}, "a flag takes nothing"

zsh = run(program, "--completion", "zsh")
assert zsh.startswith(f"#compdef {name}\n"), zsh
if shutil.which("zsh") is None:
    print("not tried: zsh is not installed (tools/setup --test)")
    sys.exit()


def of_zsh(*words):
    """What its completion is given, by functions that say what they are called with."""
    asked = """functions[made]=$1; shift; words=("$@"); CURRENT=$#
compadd() { [[ $1 = -a ]] && print -rl -- ${(P)2} }
_files() { print FILES }
_normal() { print -rl -- PROGRAM $CURRENT $words }
made"""
    done = subprocess.run(["zsh", "-f", "-c", asked, "zsh", zsh, name, *words], capture_output=True, text=True, timeout=LONG, stdin=subprocess.DEVNULL)
    assert not done.stderr, done.stderr
    return done.stdout.split()


assert set(of_zsh("")) >= options() | set(command), of_zsh("")
for one in command:
    assert set(of_zsh(one, "")) >= options(one), of_zsh(one, "")
for option in files:
    assert of_zsh(*command[:1], option, "th") == ["FILES"], option
if name == "olrun":
    assert of_zsh("--vram", "") == [], of_zsh("--vram", "")
    assert of_zsh("--vram", "8GiB", "--", "python3", "ge") == ["PROGRAM", "2", "python3", "ge"]
    assert "--stats" in of_zsh("--check", "--st"), "a flag takes nothing"
