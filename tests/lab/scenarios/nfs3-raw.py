"""Asks an NFS server what clients seldom do, and prints a line for each answer: by octets, so that no client is in between.
usage: nfs3-raw.py HOST PORT MOUNT_PORT EXPORT"""

import socket
import struct
import sys

host, port, mount_port, export = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
NFS, MOUNT = 100003, 100005


def words(*values):
    return struct.pack(f">{len(values)}I", *values)


def opaque(octets):
    return words(len(octets)) + octets + bytes(-len(octets) % 4)


class Rpc:
    def __init__(self, port):
        # TIME: for a server that answers no more; far longer than an answer takes.
        self.stream = socket.create_connection((host, port), timeout=300)
        self.xid = 1000 * port

    def call(self, program, procedure, args, xid=None):
        if xid is None:
            self.xid += 1
            xid = self.xid
        credential = words(1, 20, 0, 0, 0, 0, 0)
        message = words(xid, 0, 2, program, 3, procedure) + credential + words(0, 0) + args
        self.stream.sendall(words(1 << 31 | len(message)) + message)
        reply = b""
        while True:
            mark = struct.unpack(">I", self.read(4))[0]
            reply += self.read(mark & 0x7FFFFFFF)
            if mark >> 31:
                break
        # XID, reply, accepted, no verifier, success.
        assert reply[:24] == words(xid, 1, 0, 0, 0, 0), reply
        return reply[24:]

    def read(self, count):
        octets = b""
        while len(octets) < count:
            more = self.stream.recv(count - len(octets))
            assert more, "the server closed the connection"
            octets += more
        return octets


mounted = Rpc(mount_port).call(MOUNT, 1, opaque(export.encode()))
status, length = struct.unpack(">2I", mounted[:8])
assert status == 0, status
root = opaque(mounted[8 : 8 + length])
first, second = Rpc(port), Rpc(port)


def status_of(rpc, procedure, args, xid=None):
    return struct.unpack(">I", rpc.call(NFS, procedure, args, xid)[:4])[0]


def handle_of(name):
    found = first.call(NFS, 3, root + opaque(name))
    status, length = struct.unpack(">2I", found[:8])
    assert status == 0, status
    return opaque(found[8 : 8 + length])


# Nothing set but the times, to the server's: what the Linux client sends behind an exclusive CREATE has it, too.
times = words(0, 0, 0, 0, 1, 1, 0)
changes = {
    b"setattr": lambda file: (2, file + times),
    b"write": lambda file: (7, file + words(0, 0, 1, 2) + opaque(b"x")),
}
for name, change in changes.items():
    create = root + opaque(name) + words(2) + b"verifier"
    answers = [status_of(first, 8, create, 7), status_of(second, 8, create)]
    answers += [status_of(first, *change(handle_of(name)))]
    answers += [status_of(second, 8, create), status_of(first, 8, create, 7)]
    print(f"exclusive CREATE, another, {name.decode()}, another, the first again: {answers}")
print(f"COMMIT of a directory: {status_of(first, 21, root + words(0, 0, 0))}")


def names(procedure, cookie):
    counts = words(4096) if procedure == 16 else words(4096, 4096)
    listed = first.call(NFS, procedure, root + struct.pack(">Q", cookie) + bytes(8) + counts)
    status, has_attributes = struct.unpack(">2I", listed[:8])
    assert status == 0, (procedure, cookie, status)
    at = 8 + 84 * has_attributes + 8
    while struct.unpack(">I", listed[at : at + 4])[0]:
        length = struct.unpack(">I", listed[at + 12 : at + 16])[0]
        name = listed[at + 16 : at + 16 + length]
        at += 16 + length + -length % 4
        cookie = struct.unpack(">Q", listed[at : at + 8])[0]
        at += 8
        if procedure == 17:
            at += 4 + 84 * struct.unpack(">I", listed[at : at + 4])[0]
            if struct.unpack(">I", listed[at : at + 4])[0]:
                length = struct.unpack(">I", listed[at + 4 : at + 8])[0]
                at += 4 + length
            at += 4
        yield name, cookie


for procedure, kind in ((16, "READDIR"), (17, "READDIRPLUS")):
    listed, cookie = [], 0
    while some := list(names(procedure, cookie)):
        listed += [name for name, _ in some]
        cookie = some[-1][1]
    print(f"{kind} with a verifier of zero lists {len(listed)} names, each once: {len(set(listed)) == len(listed)}")
