"""Sent to a service as the program of a function test; imports nothing of this package.

The solution runs in a process of its own, on the code that runs it locally. It gets one input at a time, over a socket,
and its output goes nowhere: what this process prints, the solution can neither read nor write.
"""

import contextlib
import ctypes
import json
import select
import socket
import struct
import subprocess
import sys
import tempfile

LENGTH = struct.Struct("<I")
ANSWER, ENDED = "=", "."  # what a line says
# The other process: descriptors 3 and 4 become what `stage` expects; the modules come before the solution.
BOOT = """
import fcntl, json, os, sys, types
channel, modules, source = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 30) for fd in sys.argv[1:])
os.dup2(channel, 3)
os.dup2(source, 4)
if not hasattr(sys, "set_int_max_str_digits"):
    sys.get_int_max_str_digits, sys.set_int_max_str_digits = lambda: 0, lambda digits: None
sys.set_int_max_str_digits(0)
package = sys.modules["inside"] = types.ModuleType("inside")
package.__path__ = []
with os.fdopen(modules) as file:
    texts = json.load(file)
os.closerange(5, 64)
for name, text in texts.items():
    module = sys.modules["inside." + name] = types.ModuleType("inside." + name)
    module.__package__ = "inside"
    setattr(package, name, module)
    exec(compile(text, name + ".py", "exec"), vars(module))
package.stage.prepare()
package.solver.run()
"""


def main():
    request = json.loads(sys.stdin.read())
    with contextlib.suppress(OSError, AttributeError):  # no such system
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: /proc shows the solution nothing of this process
    near, far = socket.socketpair()
    texts = [as_file(json.dumps(request["modules"])), as_file(request["source"])]
    files = [far.fileno(), *(file.fileno() for file in texts)]
    child = subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", "-c", BOOT, *map(str, files)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=files,
    )
    far.close()
    try:
        tell(request["marker"], read_frame(near, request["cap"]))
        for arguments in request["inputs"]:
            if select.select([near], [], [], 0)[0]:
                break  # it answers before it is asked, or is gone
            question = json.dumps({"name": request["name"], "args": arguments}).encode()
            near.sendall(LENGTH.pack(len(question)) + question)
            tell(request["marker"], read_frame(near, request["cap"]))
    except (EOFError, OSError):
        pass  # the exit status says it
    near.close()
    try:
        status = child.wait(2)
    except subprocess.TimeoutExpired:
        child.kill()
        status = 0
    print(request["marker"] + ENDED + str(status), flush=True)


def as_file(text):
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the other process reads it)
    file.write(text.encode("utf-8", "surrogatepass"))
    file.seek(0)
    return file


def tell(marker, body):
    text = body.decode("ascii", "replace")
    print(marker + ANSWER + ("" if "\n" in text or not text.isascii() else text), flush=True)


def read_frame(channel, cap):
    (length,) = LENGTH.unpack(read_bytes(channel, 4))
    if length > cap:
        raise EOFError
    return read_bytes(channel, length)


def read_bytes(channel, count):
    data = bytearray()
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


main()
