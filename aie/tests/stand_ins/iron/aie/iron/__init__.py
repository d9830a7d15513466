"""Writes down what a design asks of IRON; `resolve_program` returns the list."""

import contextlib

LOG = []


class ObjectFifo:
    def __init__(self, obj_type, name):
        self.name = name

    def cons(self):
        return self

    def prod(self):
        return self

    def split(self, offsets, obj_types, names):
        LOG.append((self.name, offsets))
        return [ObjectFifo(None, name) for name in names]

    join = split


def Kernel(*arguments):
    return arguments


def Worker(function, arguments):
    LOG.append(("worker", arguments[0].name, arguments[1].name, arguments[3]))


class Runtime:
    @contextlib.contextmanager
    def sequence(self, *types):
        yield "logits", "probabilities"

    def start(self, *workers):
        pass

    def fill(self, fifo, source, tap):
        LOG.append(("fill", fifo.name, source, tap))

    def drain(self, fifo, target, tap, wait):
        LOG.append(("drain", fifo.name, target, tap))


class Program:
    def __init__(self, device, runtime):
        pass

    def resolve_program(self, placer):
        return LOG
