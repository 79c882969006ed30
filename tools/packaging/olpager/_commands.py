"""The programs as commands of a Python environment: this process becomes the program."""
import os
import sys

from olpager import program


def _become(name):
    os.execv(program(name), [name, *sys.argv[1:]])


def olrun():
    _become("olrun")


def olctl():
    _become("olctl")


def olpagestat():
    _become("olpagestat")


def olgpunode():
    _become("olgpunode")


def olmemserver():
    _become("olmemserver")
