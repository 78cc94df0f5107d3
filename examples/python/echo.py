"""Calls in batches, by cffi: python3 echo.py ADDRESS [OPTION=VALUE...], where examples/c/echo.c runs as `echo serve ADDRESS`."""
import re, subprocess, sys
from cffi import FFI

include = subprocess.check_output(["pkg-config", "--variable=includedir", "rpcrdma"], text=True).strip()
header = open(include + "/rpcrdma.h").read()
ffi = FFI()
# cffi takes declarations alone: not comments, and nothing of the preprocessor.
ffi.cdef(re.sub(r"/\*.*?\*/|#ifdef __cplusplus.*?#endif[^\n]*|^#[^\n]*", "", header, flags=re.S | re.M))
lib = ffi.dlopen("librpcrdma.so.0")

def check(result):
    if result < 0:
        raise RuntimeError(ffi.string(lib.rpcrdma_error_text()).decode())
    return result

def made(kind, function, *arguments):
    place = ffi.new(kind + " **")
    check(function(*arguments, place))
    return place[0]

BATCH, ECHO = 32, (0x20000001, 1, 1)
options = lib.rpcrdma_options_new()
for name, value in (word.encode().split(b"=", 1) for word in sys.argv[2:]):
    check(lib.rpcrdma_options_set(options, name, value))
client = made("rpcrdma_client", lib.rpcrdma_client_connect, sys.argv[1].encode(), options)
lib.rpcrdma_options_free(options)
poller = made("rpcrdma_poller", lib.rpcrdma_poller_new, client, BATCH)
for tag in range(BATCH):
    call, text = made("rpcrdma_call", lib.rpcrdma_poller_call, poller, ECHO), b"call %d" % tag
    check(lib.rpcrdma_put_opaque(call, text, len(text)))
    check(lib.rpcrdma_poller_submit(poller, call, tag))
ended, data, size, answers = ffi.new("rpcrdma_completion[]", BATCH), ffi.new("void **"), ffi.new("size_t *"), {}
while len(answers) < BATCH:
    for one in ended[0:check(lib.rpcrdma_poller_wait(poller, ended, BATCH, 60000))]:
        check(one.error)
        check(lib.rpcrdma_get_opaque(one.call, data, size))
        answers[one.tag] = ffi.buffer(data[0], size[0])[:]
        lib.rpcrdma_call_free(one.call)
print(*sorted(answers.items())[-1])
lib.rpcrdma_poller_free(poller)
lib.rpcrdma_client_free(client)
