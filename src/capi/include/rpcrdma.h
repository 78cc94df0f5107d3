/* librpcrdma: RPC over RDMA for C and C++. Made by cbindgen from src/capi: do not edit it.
 *
 * docs/c.md has a first program. What holds for all functions:
 *
 * Results. A function that returns `int` returns RPCRDMA_OK (0) or more when it succeeds, and one of the negative codes
 * below when it fails. rpcrdma_error_text() says more then, on the same thread, until another function fails there.
 *
 * Handles. A handle comes from a function with an output parameter, and ends by the function for that (`_free`, or one
 * whose description says that it takes the handle). Output parameters are set only on success. A handle that is NULL
 * gives RPCRDMA_E_ARGUMENT; `_free` ignores it.
 *
 * Threads. Nodes, servers, clients and memory may be used by any threads at a time. Options, calls, buffers, pollers and cores
 * may go from thread to thread, and are used by one at a time.
 *
 * Handlers run on the thread of a core, which does nothing else meanwhile: they must not wait, and must not end the
 * last handle of their node. A C++ exception or longjmp must not leave a handler.
 *
 * Nothing here calls exit or abort, and a panic within the library is reported as RPCRDMA_E_PANIC.
 *
 * fork: a child process must not use what its parent made.
 */

#ifndef RPCRDMA_H
#define RPCRDMA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 It succeeded.
 */
#define RPCRDMA_OK 0

/*
 An address cannot be used: it names no fabric, or another one than the node has.
 */
#define RPCRDMA_E_ADDRESS -1

/*
 An option, a profile or a size cannot be used, or the node cannot be started with it.
 */
#define RPCRDMA_E_CONFIGURATION -2

/*
 The connection cannot be made, and was not made again. The call was not executed.
 */
#define RPCRDMA_E_NOT_CONNECTED -3

/*
 No reply came in time. The server may have executed the call, or may do so yet.
 */
#define RPCRDMA_E_TIMED_OUT -4

/*
 The connection ended before the reply came. The server may have executed the call.
 */
#define RPCRDMA_E_DISCONNECTED -5

/*
 As many calls are under way as there may be: take replies first. The call was not executed.
 */
#define RPCRDMA_E_BUSY -6

/*
 The arguments or the results are longer than a message may be.
 */
#define RPCRDMA_E_TOO_LONG -7

/*
 There is no registered memory to spare now.
 */
#define RPCRDMA_E_NO_BUFFERS -8

/*
 The other end or the device cannot do what the call needs. The call was not executed.
 */
#define RPCRDMA_E_UNSUPPORTED -9

/*
 The server does not have the program.
 */
#define RPCRDMA_E_PROGRAM_UNAVAILABLE -10

/*
 The server has the program in other versions.
 */
#define RPCRDMA_E_PROGRAM_MISMATCH -11

/*
 The program has no such procedure. A handler may return it.
 */
#define RPCRDMA_E_PROCEDURE_UNAVAILABLE -12

/*
 The arguments cannot be decoded. A handler may return it.
 */
#define RPCRDMA_E_GARBAGE_ARGS -13

/*
 The call failed at the server. A handler may return it.
 */
#define RPCRDMA_E_SYSTEM_ERROR -14

/*
 The server refuses the caller's credential. A handler may return it.
 */
#define RPCRDMA_E_DENIED -15

/*
 The reply cannot be decoded.
 */
#define RPCRDMA_E_BAD_REPLY -16

/*
 The program uses a handle in a way that cannot work, such as to read results before there are any.
 */
#define RPCRDMA_E_USAGE -17

/*
 The node is shutting down.
 */
#define RPCRDMA_E_SHUTTING_DOWN -18

/*
 A failure that this list has no number for.
 */
#define RPCRDMA_E_OTHER -19

/*
 A pointer is NULL that may not be, a text is no UTF-8, or a number is out of its range.
 */
#define RPCRDMA_E_ARGUMENT -20

/*
 The library panicked: a fault in it. The handle should not be used any more.
 */
#define RPCRDMA_E_PANIC -21

/*
 A connection was closed from this side.
 */
#define RPCRDMA_CLOSED_LOCAL 0

/*
 The core of a connection stopped.
 */
#define RPCRDMA_CLOSED_STOPPED 1

/*
 The peer closed the connection, or is gone.
 */
#define RPCRDMA_CLOSED_PEER 2

/*
 Nothing came from the peer, not even a keep-alive.
 */
#define RPCRDMA_CLOSED_SILENT 3

/*
 The peer did not do its part in time: it holds what others could use.
 */
#define RPCRDMA_CLOSED_STALLED 4

/*
 The peer supports other versions of RPC-over-RDMA alone.
 */
#define RPCRDMA_CLOSED_VERSION 5

/*
 The peer broke the protocol.
 */
#define RPCRDMA_CLOSED_PROTOCOL 6

/*
 The peer did not prove who it is.
 */
#define RPCRDMA_CLOSED_UNAUTHENTICATED 7

/*
 The peer did not answer a call, and may still reach the memory of it.
 */
#define RPCRDMA_CLOSED_UNANSWERED 8

/*
 Nothing came by the path to the peer, and another path leads there.
 */
#define RPCRDMA_CLOSED_PATH 9

/*
 The client has lost the connection and made it again.
 */
#define RPCRDMA_CLOSED_REPLACED 10

/*
 Bytes in registered memory, in one or several pieces: data that is sent from where it is, or that came by RDMA. It may be
 kept as long as needed; its memory is there for no other call meanwhile (bulk_buffers of the profile).
 */
typedef struct rpcrdma_buffer rpcrdma_buffer;

/*
 One call, as either end sees it. `rpcrdma_put_...` writes what goes out, `rpcrdma_get_...` reads what came in, each from where
 the last one ended.

 At the client what goes out are the arguments, and what comes in are the results, once rpcrdma_call_run() or a poller
 has brought them. In a handler it is the other way round.
 */
typedef struct rpcrdma_call rpcrdma_call;

/*
 Calls the server at one address, from any number of threads. It connects again when a connection is lost: calls that were
 sent fail with RPCRDMA_E_DISCONNECTED then, and calls that were not sent wait.
 */
typedef struct rpcrdma_client rpcrdma_client;

/*
 A core without a thread: it serves and calls in rpcrdma_core_poll(), on whichever thread calls that. For programs whose
 threads poll several things in turn, such as reactors of SPDK.
 */
typedef struct rpcrdma_core rpcrdma_core;

/*
 Memory that the program owns, in blocks of equal size: buffers of it are sent from and received into where they are.
 Give it to a node by rpcrdma_options_add_memory(). It is in use until its handle and all its buffers have been freed
 and its nodes have ended.
 */
typedef struct rpcrdma_memory rpcrdma_memory;

/*
 Polling cores with their memory, and the thread that makes their connections. Servers and clients that share one
 keep it alive: it ends with the last handle.
 */
typedef struct rpcrdma_node rpcrdma_node;

/*
 What is not left to its default: a list of names and values.
 */
typedef struct rpcrdma_options rpcrdma_options;

/*
 A queue of calls of one thread, which come back in the order of their replies.
 */
typedef struct rpcrdma_poller rpcrdma_poller;

/*
 A node that listens, until it is freed.
 */
typedef struct rpcrdma_server rpcrdma_server;

/*
 A credential or verifier that a function of this program makes.
 */
typedef struct rpcrdma_auth {
  /*
   Its flavor.
   */
  uint32_t flavor;
  /*
   The bytes of its body: at most 400.
   */
  uint32_t bytes;
  /*
   Its body.
   */
  uint8_t body[400];
} rpcrdma_auth;

/*
 What is called: a procedure of a version of a program (RFC 5531 section 8.1).
 */
typedef struct rpcrdma_procedure {
  /*
   The program.
   */
  uint32_t program;
  /*
   Its version.
   */
  uint32_t version;
  /*
   The number of the procedure.
   */
  uint32_t number;
} rpcrdma_procedure;

/*
 A program that a node serves. Set what is not used to zero.

 The handlers run on the threads of the node's cores: with several cores, on several threads at a time. `user` goes to
 each of them as it is, and must be valid until the node has ended.
 */
typedef struct rpcrdma_service {
  /*
   The number of the program. Those from 0x20000000 to 0x3fffffff are for anybody's use (RFC 5531 section 8.2).
   */
  uint32_t program;
  /*
   The lowest version of it.
   */
  uint32_t version_low;
  /*
   The highest version of it.
   */
  uint32_t version_high;
  /*
   Answers a call: reads its arguments (`rpcrdma_get_...`), writes its results (`rpcrdma_put_...`), and returns RPCRDMA_OK.
   The results are sent then. Or it returns RPCRDMA_E_PROCEDURE_UNAVAILABLE, RPCRDMA_E_GARBAGE_ARGS or
   RPCRDMA_E_DENIED, which the caller gets; for every other negative number, it gets RPCRDMA_E_SYSTEM_ERROR.

   `call` and what was read from it are valid until this returns. For an answer later: rpcrdma_call_later(). Procedure 0
   is answered without it.
   */
  int (*call)(void *user, struct rpcrdma_call *call);
  /*
   A peer has connected, and may call. `connection` is a number that no other connection of the node has, for
   rpcrdma_node_close(). `identity` is what it proved to be, or NULL. May be NULL.
   */
  void (*connected)(void *user, uint64_t connection, const char *identity);
  /*
   A connection has ended. `reason` is one of RPCRDMA_CLOSED_..., and `text` says it in words, until this returns. May
   be NULL.
   */
  void (*disconnected)(void *user, uint64_t connection, int reason, const char *text);
  /*
   Goes to each handler.
   */
  void *user;
  /*
   The procedures that must not run twice, `once_count` of them, which are copied: when a client that lost its
   connection sends a call of one of them again (the option "repeat"), it gets the first reply again. Each is of this
   program, and of a version that this serves. NULL for none.
   */
  const struct rpcrdma_procedure *once;
  /*
   Their number.
   */
  size_t once_count;
  /*
   The flavors of credentials that it takes (RFC 5531 section 8.2), `flavors_count` of them, which are copied; a call with
   another one is denied without it. NULL for all: `call` looks at them itself then.
   */
  const uint32_t *flavors;
  /*
   Their number.
   */
  size_t flavors_count;
  /*
   Judges the caller of a call whose credential is neither AUTH_NONE (0) nor AUTH_SYS (1), before `call` runs and before its
   reply is looked for among those that are kept: with rpcrdma_call_credential(), rpcrdma_call_verifier() and
   rpcrdma_call_signed(). rpcrdma_call_set_verifier() sets the verifier of the reply. With RPCSEC_GSS (6) `call` also answers
   the calls of procedure 0 that create a context, and sets the verifier of that reply.

   Returns RPCRDMA_OK; or a status of RFC 5531 section 9 with which the call is denied, such as 13 for
   RPCSEC_GSS_CREDPROBLEM; or RPCRDMA_E_TIMED_OUT, and the call gets no answer, as RPCSEC_GSS wants for a number that came before
   (RFC 2203 section 5.3.3.1). For every other negative number it is denied with AUTH_BADCRED. NULL takes all callers.
   */
  int (*authenticate)(void *user, struct rpcrdma_call *call);
} rpcrdma_service;

/*
 A call that has ended.
 */
typedef struct rpcrdma_completion {
  /*
   The call, which is yours again: read its results, then free it or begin another with it.
   */
  struct rpcrdma_call *call;
  /*
   The name that it was submitted with.
   */
  uint64_t tag;
  /*
   RPCRDMA_OK, or why there are no results, with the text in rpcrdma_call_error().
   */
  int error;
} rpcrdma_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Calls with a credential: its flavor, and its body of at most 400 bytes (RFC 5531 section 8.2), which is copied.
 */
int rpcrdma_call_set_credential(struct rpcrdma_call *call,
                                uint32_t flavor,
                                const void *body,
                                size_t bytes);

/*
 The caller's credential in a handler: its flavor, and its body (RFC 5531 section 8.2), which is valid until the handler
 returns. Of a call of this program that was signed (rpcrdma_call_sign()) and has its results: that of the message which was sent
 last, until this or rpcrdma_call_verifier() is called again.
 */
int rpcrdma_call_credential(struct rpcrdma_call *call,
                            uint32_t *flavor,
                            const void **body,
                            size_t *bytes);

/*
 The caller's verifier in a handler, as rpcrdma_call_credential(). Of a call of this program that was signed and has its results: the
 verifier of the reply, until this or rpcrdma_call_credential() is called again.
 */
int rpcrdma_call_verifier(struct rpcrdma_call *call,
                          uint32_t *flavor,
                          const void **body,
                          size_t *bytes);

/*
 In a handler: the call from its XID to the end of its credential, which the verifier of RPCSEC_GSS is computed over (RFC 2203
 section 5.3.1). It is valid until the handler returns. No octets if the verifier is AUTH_NONE and has no body.
 */
int rpcrdma_call_signed(struct rpcrdma_call *call,
                        const void **octets,
                        size_t *bytes);

/*
 Gives the reply to a handler's call this verifier, of at most 400 bytes, in place of AUTH_NONE. It comes before all results,
 and before rpcrdma_call_later(), whose answer has it too.

 Errors: RPCRDMA_E_USAGE when results are written, `authenticate` has set a verifier, or the call is answered later.
 */
int rpcrdma_call_set_verifier(struct rpcrdma_call *call,
                              uint32_t flavor,
                              const void *body,
                              size_t bytes);

/*
 Calls with the credential and the verifier that `sign` makes each time that the call is sent, in place of
 rpcrdma_call_set_credential(): RPCSEC_GSS needs another number in each message, and a verifier over the XID (RFC 2203
 section 5.3.1).

 `sign` makes the credential when `octets` is NULL, and then the verifier for the `bytes` bytes at `octets`: the call from its XID to
 the end of its credential. It runs on threads of cores, and must not wait. `user` goes to it as it is, and must be valid until the node of the
 client has ended. What is too long, or was not made, is sent as a credential that no server takes.
 */
int rpcrdma_call_sign(struct rpcrdma_call *call,
                      void (*sign)(void *user,
                                   const void *octets,
                                   size_t bytes,
                                   struct rpcrdma_auth *out),
                      void *user);

/*
 Says why the last function that failed on this thread did: a sentence in UTF-8. "" when none failed yet.

 The text is valid until another function fails on this thread, or the thread ends.
 */
const char *rpcrdma_error_text(void);

/*
 The name of an error's code, such as "RPCRDMA_E_TIMED_OUT". It is valid for ever.
 */
const char *rpcrdma_error_name(int code);

/*
 The version of the library, such as "0.1.0". It is valid for ever.
 */
const char *rpcrdma_version(void);

/*
 The length of a buffer in bytes. 0 for NULL.
 */
size_t rpcrdma_buffer_bytes(const struct rpcrdma_buffer *buffer);

/*
 The pieces of a buffer, in order, to be read or written until it is freed or sent: as many as there is room for go to
 `pieces`, and the number of all to `count`. Most buffers have one: a piece has up to bulk_buffer_bytes of the profile. 32
 entries are enough.
 */
int rpcrdma_buffer_pieces(struct rpcrdma_buffer *buffer,
                          struct iovec *pieces,
                          size_t room,
                          size_t *count);

/*
 Copies `bytes` bytes to the start of a buffer.

 Errors: RPCRDMA_E_TOO_LONG when it is shorter. What fits is copied.
 */
int rpcrdma_buffer_write(struct rpcrdma_buffer *buffer, const void *data, size_t bytes);

/*
 Copies `bytes` bytes from the start of a buffer to `data`.

 Errors: RPCRDMA_E_TOO_LONG when it is shorter. What it has is copied.
 */
int rpcrdma_buffer_read(const struct rpcrdma_buffer *buffer, void *data, size_t bytes);

/*
 Gives the memory of a buffer back.
 */
void rpcrdma_buffer_free(struct rpcrdma_buffer *buffer);

/*
 Expects an opaque of at most `bytes_max` bytes in the results, whose data may come beside their stream: rpcrdma_get_bulk()
 and its relatives read it. Several come in the order of these calls. The program must permit this for the item (it is
 DDP-eligible, RFC 8166 section 6).

 The results need not have such an item, and it may be shorter. What is not expected comes in the stream, copied. Data that is
 longer than was expected is copied too, or the call fails with RPCRDMA_E_BAD_REPLY.
 */
int rpcrdma_call_expect_bulk(struct rpcrdma_call *call,
                             uint32_t bytes_max);

/*
 As rpcrdma_call_expect_bulk(), for data that is to be written into `buffer`, whose length is the most that it can have. Takes
 the buffer, unless it fails: rpcrdma_take_bulk() brings it back with the data. What a server sends in the
 stream of its results is not there, and the buffer is freed then; likewise the results of a call that was lost with its connection and
 repeated. At most 8 pieces, with those of other results.

 Errors: RPCRDMA_E_ARGUMENT for a buffer that is not in registered memory, or is empty.
 */
int rpcrdma_call_expect_bulk_into(struct rpcrdma_call *call,
                                  struct rpcrdma_buffer *buffer);

/*
 The most bytes that the results have without such data, if they are more than 512. It matters for calls with bulk data, and
 for all calls of a server that has version 1 of RPC-over-RDMA alone: there a reply is one message, of 4 KiB or less, unless
 the call offers room for a longer one, in registered memory (`bulk_buffers`). Without it the call fails with
 RPCRDMA_E_BAD_REPLY there, and was executed.
 */
int rpcrdma_call_results_max(struct rpcrdma_call *call,
                             size_t bytes_max);

/*
 How long rpcrdma_call_run() waits for the reply, in place of the client's own limit.
 */
int rpcrdma_call_timeout(struct rpcrdma_call *call, uint32_t timeout_ms);

/*
 Sends a call and waits for its results. On success they can be read. Otherwise there are none, and the handle can begin
 another call.

 Errors: with RPCRDMA_E_TIMED_OUT and RPCRDMA_E_DISCONNECTED the server may have executed the call. With
 RPCRDMA_E_NOT_CONNECTED, RPCRDMA_E_BUSY, RPCRDMA_E_UNSUPPORTED and RPCRDMA_E_USAGE it did not. The rest is what the server
 answered.
 */
int rpcrdma_call_run(struct rpcrdma_call *call);

/*
 Why a call that a poller gave back failed: a sentence in UTF-8; "" when it did not. It is valid until the handle begins
 another call or is freed. NULL for NULL.
 */
const char *rpcrdma_call_error(const struct rpcrdma_call *call);

/*
 Registered memory for `bytes` bytes of what goes out, which hold remains of earlier data: write to it, then add it with
 rpcrdma_put_bulk(), and it is sent from where it is.

 Never waits. The core keeps some memory ready for the threads of the program, and makes more ready after some was taken: so
 there can be none at the first call of a program, and right after others have taken much.

 Errors: RPCRDMA_E_NO_BUFFERS while there is none ready. At a client, rpcrdma_client_buffer() waits for it, or try again
 later. In a handler, rpcrdma_put_bulk_copy() copies into the stream then; or take the call with rpcrdma_call_later() and
 try again.
 */
int rpcrdma_call_buffer(struct rpcrdma_call *call,
                        size_t bytes,
                        struct rpcrdma_buffer **buffer);

/*
 The number of the procedure that a handler is called for. 0 when no handler has the call now.
 */
uint32_t rpcrdma_call_number(struct rpcrdma_call *call);

/*
 The version of the program that a handler is called for. 0 when no handler has the call now.
 */
uint32_t rpcrdma_call_version(struct rpcrdma_call *call);

/*
 The connection that a handler's call came by, as `connected` of the service named it. UINT64_MAX when no handler has
 the call now.
 */
uint64_t rpcrdma_call_connection(struct rpcrdma_call *call);

/*
 In a handler: the right to answer its call later, from any thread. What the handler writes and returns counts no more then.
 Write the results to `later` and end it with rpcrdma_call_answer(). rpcrdma_call_free() answers RPCRDMA_E_SYSTEM_ERROR.

 Errors: RPCRDMA_E_BUSY when as many calls wait for their answers as the core has room for (deferred_replies_max of the
 profile), or this one does already.
 */
int rpcrdma_call_later(struct rpcrdma_call *call,
                       struct rpcrdma_call **later);

/*
 Answers a call that was put off, and takes the handle: with the results that were written to it when `code` is
 RPCRDMA_OK, else as if the handler had returned `code`.

 Errors: RPCRDMA_E_USAGE for another handle, which stays yours.
 */
int rpcrdma_call_answer(struct rpcrdma_call *later,
                        int code);

/*
 Ends a call, with all that was read from it. One that was not sent is not sent any more. Does nothing to a handler's own call,
 nor to one that a poller has: rpcrdma_poller_complete() gives that back, or rpcrdma_poller_free() ends it.
 */
void rpcrdma_call_free(struct rpcrdma_call *call);

/*
 Connects to the server at `address`, "shm:NAME" or "rdma:HOST:PORT", on a new node. Several addresses of one server, with
 commas, as in "shm:a,b": a connection that is lost goes on at the next one (docs/rails.md).

 Errors: RPCRDMA_E_NOT_CONNECTED when the connection is not there in time; RPCRDMA_E_ADDRESS, RPCRDMA_E_CONFIGURATION.
 */
int rpcrdma_client_connect(const char *address,
                           const struct rpcrdma_options *options,
                           struct rpcrdma_client **client);

/*
 As rpcrdma_client_connect(), on a node that is there: its options are those that it was started with.
 */
int rpcrdma_client_connect_on(const struct rpcrdma_node *node,
                              const char *address,
                              const struct rpcrdma_options *options,
                              struct rpcrdma_client **client);

/*
 Begins a call of `procedure`: write its arguments with `rpcrdma_put_...`, then send it with rpcrdma_call_run(). End it with
 rpcrdma_call_free(), or begin another with rpcrdma_client_again().
 */
int rpcrdma_client_call(const struct rpcrdma_client *client,
                        struct rpcrdma_procedure procedure,
                        struct rpcrdma_call **call);

/*
 Begins another call with a handle that is there, which takes no memory. What was read from it is valid no more.
 */
int rpcrdma_client_again(const struct rpcrdma_client *client,
                         struct rpcrdma_call *call,
                         struct rpcrdma_procedure procedure);

/*
 Registered memory of the client's core for `bytes` bytes, which hold remains of earlier data. Waits for it up to
 `timeout_ms`. With several connections it may be of another core than a call: rpcrdma_call_buffer() always fits.

 The calls and buffers of a program can have three quarters of a core's bulk_buffers at a time, and one client can have all
 of these.

 Errors: RPCRDMA_E_NO_BUFFERS after that time, or immediately for more than 32 pieces of bulk_buffer_bytes, or than half of
 the core's.
 */
int rpcrdma_client_buffer(const struct rpcrdma_client *client,
                          size_t bytes,
                          uint32_t timeout_ms,
                          struct rpcrdma_buffer **buffer);

/*
 A handle of the client's node, for its counters, and for other clients on its cores. End it with rpcrdma_node_free().
 */
int rpcrdma_client_node(const struct rpcrdma_client *client,
                        struct rpcrdma_node **node);

/*
 1 when all connections of a client are there, 0 when one is not.
 */
int rpcrdma_client_is_connected(const struct rpcrdma_client *client);

/*
 How often a lost connection was made again.
 */
int rpcrdma_client_reconnects(const struct rpcrdma_client *client, uint64_t *count);

/*
 Ends a client. Its calls and pollers keep its connections until they end too.
 */
void rpcrdma_client_free(struct rpcrdma_client *client);

/*
 Hands out a core of a node that was started with the option "polled", for one thread to poll. What waits for a core waits
 for ever on the thread that polls it, so there: connect with the option "wait" set to "no", call by a poller, take memory by
 rpcrdma_call_buffer(), and leave rpcrdma_node_drain() to another thread.

 Errors: RPCRDMA_E_USAGE when it was handed out already, or the node has no such core or polls it itself.
 */
int rpcrdma_node_take_core(const struct rpcrdma_node *node,
                           size_t index,
                           struct rpcrdma_core **core);

/*
 Does what there is to do, within bounds, and returns 1 when there was something, else 0. It never waits. Handlers run in it,
 on the calling thread. Call it again and again: while nobody does, no call goes on, and peers that hear nothing for long
 end their connections.

 Errors: RPCRDMA_E_SHUTTING_DOWN when the node has ended: free the core then.
 */
int rpcrdma_core_poll(struct rpcrdma_core *core);

/*
 Ends a core: its connections close, and calls under way fail, as do those that clients of its node make by it later. The
 other handles of its node may end before or after it.
 */
void rpcrdma_core_free(struct rpcrdma_core *core);

/*
 Uses `bytes` bytes from `start` on, which the program mapped: hugepages of SPDK or DPDK, for example. For rdma: alone; on
 shm: the peer has to map the memory, so use rpcrdma_memory_of_file(). `start` and `block_bytes` are multiples of 4096, and
 `bytes` is one of `block_bytes`.

 The range must stay mapped as it is, to be read and written, until `released` is called with `user`, on any thread.
 `released` may be NULL: then no later than the handle, all buffers and all nodes with it have ended.

 While there is a buffer of a block, nothing else writes to the block. The program may read it as long as the buffer is only
 sent (rpcrdma_put_bulk()), also by rpcrdma_put_bulk_copy(): not while results are expected into it, nor while another thread
 is in rpcrdma_buffer_write() or rpcrdma_buffer_pieces() with it. A block without a buffer is the program's: it
 takes no buffer of it while it writes there.

 Errors: RPCRDMA_E_CONFIGURATION when the range cannot be used; the text says why.
 */
int rpcrdma_memory_at_address(void *start,
                              size_t bytes,
                              uint32_t block_bytes,
                              void (*released)(void *user),
                              void *user,
                              struct rpcrdma_memory **memory);

/*
 Maps a whole file and uses it: a memfd, with hugepages or without, or a file of hugetlbfs. The descriptor is
 duplicated. `block_bytes` is a multiple of 4096, and the length of the file is one of `block_bytes`.

 A memfd to which seals can be added (F_GET_SEALS has no F_SEAL_SEAL) is sealed for good: nobody can resize it, write() it or map
 it to write from here on, and when this use has ended, it cannot be used again. Seals can be added to what was made with
 MFD_ALLOW_SEALING or MFD_NOEXEC_SEAL, and with neither where the sysctl vm.memfd_noexec says so. A program that wants its own
 mapping to write to makes it before this call. On shm the file must be such a memfd; peers map all of it, to read.

 Every other file stays as it is and is for rdma: alone: a file of hugetlbfs, or a memfd that other processes must still map to
 write (add F_SEAL_SEAL to it before). Until the memory is no longer used, no process shortens it or removes
 pages of it.

 What rpcrdma_memory_at_address() says of other accesses to a block holds for both.

 Errors: RPCRDMA_E_CONFIGURATION when the file cannot be used; the text says why.
 */
int rpcrdma_memory_of_file(int file,
                           uint32_t block_bytes,
                           struct rpcrdma_memory **memory);

/*
 Uses the memory of a dma-buf that another device's driver exported, for rdma: alone. The RDMA device and its driver must be
 able to (ibv_reg_dmabuf_mr, rdma-core 34), which shows when a node starts with it. The descriptor is duplicated.

 The exporter keeps the memory where it is, accessible to the processor and coherent with it, until the memory is no longer
 used. What rpcrdma_memory_at_address() says of other accesses to a block holds, for other devices too.

 Errors: RPCRDMA_E_CONFIGURATION when it cannot be mapped, or its size does not fit.
 */
int rpcrdma_memory_of_dma_buf(int file,
                              uint32_t block_bytes,
                              struct rpcrdma_memory **memory);

/*
 Where the memory begins: at the address that was given, or where the file was mapped. NULL for NULL.
 */
void *rpcrdma_memory_start(const struct rpcrdma_memory *memory);

/*
 A buffer of the `bytes` bytes from `offset` on. It has each block that the range touches until it is freed, or what it was
 given to is done with it; it has a piece for each of them, and at most 32.

 Errors: RPCRDMA_E_NO_BUFFERS while another buffer has one of the blocks (to send it twice at a time, copy it:
 docs/c.md); RPCRDMA_E_USAGE for a range that the memory does not have.
 */
int rpcrdma_memory_buffer(const struct rpcrdma_memory *memory,
                          uint64_t offset,
                          size_t bytes,
                          struct rpcrdma_buffer **buffer);

/*
 Lets every core of the nodes that are made with these options use the memory. At most 16 for one node. A range or a file is
 used by one handle at a time: add that to the options of several nodes.
 */
int rpcrdma_options_add_memory(struct rpcrdma_options *options,
                               const struct rpcrdma_memory *memory);

/*
 Ends a handle of memory. What uses it goes on.
 */
void rpcrdma_memory_free(struct rpcrdma_memory *memory);

/*
 Starts a node without a listener, for the fabric of `address` ("shm:" or "rdma:"; what follows is not looked at). It
 serves the `count` programs of `services`, which may be NULL for none; they are copied.

 Errors: RPCRDMA_E_ADDRESS, RPCRDMA_E_CONFIGURATION.
 */
int rpcrdma_node_start(const char *address,
                       const struct rpcrdma_service *services,
                       size_t count,
                       const struct rpcrdma_options *options,
                       struct rpcrdma_node **node);

/*
 Accepts connections at `address`: "shm:NAME", or "rdma:HOST:PORT" with `0.0.0.0` or `[::]` for all devices and port 0 for
 any that is free. Of the options, "authentication" is looked at. The address with what the system chose goes to
 `chosen`, which has room for `room` bytes, unless it is NULL.

 Errors: RPCRDMA_E_ADDRESS; RPCRDMA_E_CONFIGURATION when the address is in use, or it is left open who may connect;
 RPCRDMA_E_TOO_LONG when `chosen` is too short. It listens then.
 */
int rpcrdma_node_listen(const struct rpcrdma_node *node,
                        const char *address,
                        const struct rpcrdma_options *options,
                        char *chosen,
                        size_t room);

/*
 Accepts no more connections, lets the calls under way finish within `timeout_ms`, and closes all connections. It is the last
 that a node does: it accepts nothing afterwards.

 Calls that arrive meanwhile are not executed. Their callers get RPCRDMA_E_DISCONNECTED when the connections close, as
 callers do whose call was executed; those with the option "repeat" send the call again when they are connected again. Calls
 that begin on this node fail with RPCRDMA_E_SHUTTING_DOWN.

 Errors: RPCRDMA_E_TIMED_OUT when calls were under way still: their callers see the connection end.
 */
int rpcrdma_node_drain(const struct rpcrdma_node *node,
                       uint32_t timeout_ms);

/*
 Closes a connection; `connection` is its number, as `connected` of a service had it. Calls under way by it fail, and a client
 that has made it connects again. One that has ended is ignored.

 Errors: RPCRDMA_E_ARGUMENT when the node cannot have had such a connection.
 */
int rpcrdma_node_close(const struct rpcrdma_node *node,
                       uint64_t connection);

/*
 The sum over all cores of a counter, by its name in docs/tuning.md or `bench-tool`, such as "calls_sent", or of a level whose
 name no counter has. Those that say how bulk data went are in docs/c.md.

 Errors: RPCRDMA_E_ARGUMENT when there is none of that name; the text has the most similar name.
 */
int rpcrdma_node_metric(const struct rpcrdma_node *node,
                        const char *name,
                        uint64_t *value);

/*
 Ends a handle of a node. The last of a node's handles, servers and clients stops its cores: calls under way fail. It returns
 within two seconds after the handlers return from the calls that the cores have already taken. In a handler it does not wait:
 it returns, the handler goes on, its call may lose its answer, and the node ends behind it. It does not wait for a core that
 the program polls, which ends by rpcrdma_core_poll() or rpcrdma_core_free().
 */
void rpcrdma_node_free(struct rpcrdma_node *node);

/*
 Makes options, all at their defaults. Never NULL. End them with rpcrdma_options_free(); what was made with them needs
 them no more. Where a function takes options, NULL stands for the defaults.
 */
struct rpcrdma_options *rpcrdma_options_new(void);

/*
 Sets an option. Both texts are copied.

 Of a node, and so of a server, and of a client that has its own node:
 - "profile": a profile of that name, or of a file whose path ends in ".toml" (docs/tuning.md).
 - the name of any knob of a profile, such as "idle" ("spin", "pause", "park") or "bulk_buffers": its value. docs/c.md has
   the defaults that differ from those of docs/tuning.md.
 - "cpus": processors, such as "2,4": one core for each, pinned to it.
 - "cores": so many cores, which the scheduler places (default: 1).
 - "device": the RDMA devices by name, with commas between them, or "all" (default: those of the addresses).
 - "polled": "yes" for cores that threads of the program poll (default: "no"): rpcrdma_node_take_core(). Not for a client's own node.

 Of listeners and of clients:
 - "authentication": who the other end must be. "fabric" (default): what the fabric admits, which is enough on shm:
   alone; "none": anybody; "key": who proves a key of "key_file" (docs/security.md), as this end does by its "host_name".

 Of clients:
 - "connections": as many connections, on the cores in turn (default: 1).
 - "depth": calls under way on each connection (default: 64). A poller has its own.
 - "connect_timeout_ms": the time to connect (default: 5000).
 - "timeout_ms": the time that rpcrdma_call_run() waits (default: call_timeout_ms of the profile).
 - "patience_ms": the time that a call waits for a lost connection before it is sent (default: as above).
 - "spin_us": the time that a thread looks for its reply before it sleeps (default: 50).
 - "repeat": "yes" to send calls again that were lost with their connection (default: "no"): they fail with
   RPCRDMA_E_DISCONNECTED only where that cannot be. Each procedure called must do no harm when it runs twice, or be one
   of `once` of its service (docs/c.md).
 - "start": of several addresses, "spread" to have the first connection at the first, the second at the second, and so on (default),
   or "standby" to have all at the first.
 - "return_after_ms": how long a connection stays at another address before it goes back to its own (default: 2000), or "never".
 - "wait": "no" to return before the connection is there (default: "yes"). Calls wait for it then.

 Errors: RPCRDMA_E_CONFIGURATION for an unknown name, and for a value that the option cannot have. What depends on the machine or
 on other options is found when a node or a client is made with them: a profile that is not there, a device, a processor,
 the key and its file, more than the machine has, and knobs that do not go together.
 */
int rpcrdma_options_set(struct rpcrdma_options *options,
                        const char *name,
                        const char *value);

/*
 Ends options.
 */
void rpcrdma_options_free(struct rpcrdma_options *options);

/*
 Makes a queue of up to `depth` calls for one thread. The client may be freed before it.

 Errors: RPCRDMA_E_CONFIGURATION when the core has no room for so many calls (calls_outstanding_max of the profile).
 */
int rpcrdma_poller_new(const struct rpcrdma_client *client,
                       uint32_t depth,
                       struct rpcrdma_poller **poller);

/*
 Begins a call on the connection of a poller: write its arguments with `rpcrdma_put_...`, then submit it.
 */
int rpcrdma_poller_call(const struct rpcrdma_poller *poller,
                        struct rpcrdma_procedure procedure,
                        struct rpcrdma_call **call);

/*
 Begins another call with a handle that is there, which takes no memory. What was read from it is valid no more.
 */
int rpcrdma_poller_again(const struct rpcrdma_poller *poller,
                         struct rpcrdma_call *call,
                         struct rpcrdma_procedure procedure);

/*
 Sends a call of rpcrdma_poller_call() or rpcrdma_poller_again(), and takes it: rpcrdma_poller_complete() gives it back
 with `tag`. Does not wait.

 Errors: RPCRDMA_E_BUSY when `depth` calls are under way: submit it again later. RPCRDMA_E_TOO_LONG for too many items of
 bulk data, RPCRDMA_E_USAGE for a call that was sent already or that another client or poller began. The call was not sent, and
 stays yours. One that is under way stays with its poller, and no function reads, writes, sends or ends it until it comes back.
 */
int rpcrdma_poller_submit(struct rpcrdma_poller *poller,
                          struct rpcrdma_call *call,
                          uint64_t tag);

/*
 Takes calls that have ended: up to `room` go to `completions`. Returns their number, 0 when none has ended. Does not
 wait, and makes no system call.
 */
int rpcrdma_poller_complete(struct rpcrdma_poller *poller,
                            struct rpcrdma_completion *completions,
                            size_t room);

/*
 As rpcrdma_poller_complete(), but waits until a call has ended, for at most `timeout_ms`. Returns their number, 0 when none
 has ended by then. A signal does not end the wait. Every call ends in time (call_timeout_ms of the profile).

 Errors: RPCRDMA_E_USAGE when no call is under way, or there is room for none.
 */
int rpcrdma_poller_wait(struct rpcrdma_poller *poller,
                        struct rpcrdma_completion *completions,
                        size_t room,
                        uint32_t timeout_ms);

/*
 The number of calls under way. 0 for NULL.
 */
uint32_t rpcrdma_poller_outstanding(const struct rpcrdma_poller *poller);

/*
 Ends a poller, with the calls that are under way and their handles: nobody gets their results.
 */
void rpcrdma_poller_free(struct rpcrdma_poller *poller);

/*
 Takes a word (an XDR unsigned integer).

 Errors, of all functions rpcrdma_get_...: RPCRDMA_E_GARBAGE_ARGS in a handler, which may return it, and
 RPCRDMA_E_BAD_REPLY of a reply, when the stream has no such value next; RPCRDMA_E_USAGE when there is nothing to read.
 */
int rpcrdma_get_u32(struct rpcrdma_call *call,
                    uint32_t *word);

/*
 Says whether all that came in was read: a handler calls it before its call has effects, since arguments with more behind them are
 not those of its procedure.

 Errors: as rpcrdma_get_u32(), when there is more.
 */
int rpcrdma_get_end(struct rpcrdma_call *call);

/*
 Takes a hyper (an XDR unsigned hyper).
 */
int rpcrdma_get_u64(struct rpcrdma_call *call, uint64_t *hyper);

/*
 Takes an opaque of variable length from the stream, or a string. `data` is valid until the handler returns, or until
 the handle begins another call or is freed. It does not end with a zero.
 */
int rpcrdma_get_opaque(struct rpcrdma_call *call,
                       const void **data,
                       size_t *bytes);

/*
 Takes `bytes` bytes of the stream as they are. `data` is valid as that of rpcrdma_get_opaque().
 */
int rpcrdma_get_bytes(struct rpcrdma_call *call, size_t bytes, const void **data);

/*
 What is left of the stream, without what came beside it; nothing is taken. `data` is valid as that of
 rpcrdma_get_opaque(). For programs with an XDR decoder of their own.
 */
int rpcrdma_get_rest(struct rpcrdma_call *call,
                     const void **data,
                     size_t *bytes);

/*
 Takes an opaque whose data may have come beside the stream, whichever way it came, in one piece: where it is, or
 copied together if it is in several. `data` is valid as that of rpcrdma_get_opaque(), but not longer than until the next
 rpcrdma_get_bulk() of this call.
 */
int rpcrdma_get_bulk(struct rpcrdma_call *call,
                     const void **data,
                     size_t *bytes);

/*
 As rpcrdma_get_bulk(), but never copies: `pieces` has room for `room` entries, of which `count` are set. Write to none
 of them. Results have 32 at most; arguments can have more when a peer sends them so.

 Errors: also RPCRDMA_E_TOO_LONG when there are more than `room`. The item is taken then.
 */
int rpcrdma_get_bulk_pieces(struct rpcrdma_call *call,
                            struct iovec *pieces,
                            size_t room,
                            size_t *count);

/*
 As rpcrdma_get_bulk(), and keeps the data: without a copy if it came in registered memory, copied if it came in the stream or
 in more than 32 pieces.
 The memory is there for no other call before rpcrdma_buffer_free(), or rpcrdma_put_bulk() sends it on.
 */
int rpcrdma_take_bulk(struct rpcrdma_call *call,
                      struct rpcrdma_buffer **buffer);

/*
 Starts a node that serves the `count` programs of `services`, which are copied, and listens at `address`: "shm:NAME",
 or "rdma:HOST:PORT" with `0.0.0.0` or `[::]` for all devices and port 0 for any that is free.

 Errors: RPCRDMA_E_ADDRESS; RPCRDMA_E_CONFIGURATION, also when the address is in use, or it is left open who may
 connect ("authentication").
 */
int rpcrdma_server_start(const char *address,
                         const struct rpcrdma_service *services,
                         size_t count,
                         const struct rpcrdma_options *options,
                         struct rpcrdma_server **server);

/*
 Where a server listens, with what the system chose. It is valid until the server is freed. NULL for NULL.
 */
const char *rpcrdma_server_address(const struct rpcrdma_server *server);

/*
 A handle of the server's node, for clients on its cores and for its counters. End it with rpcrdma_node_free().
 */
int rpcrdma_server_node(const struct rpcrdma_server *server,
                        struct rpcrdma_node **node);

/*
 As rpcrdma_node_drain(), of the server's node.
 */
int rpcrdma_server_drain(const struct rpcrdma_server *server, uint32_t timeout_ms);

/*
 Ends a server: unless its node has other handles, connections end, and no handler runs any more when this returns. In a
 handler it does not wait, and handlers may run after it (see rpcrdma_node_free()).
 */
void rpcrdma_server_free(struct rpcrdma_server *server);

/*
 Appends a word (an XDR unsigned integer).

 Errors, of all functions rpcrdma_put_...: RPCRDMA_E_USAGE when the call was sent, answered or failed. What does not fit makes
 the whole message fail when it is sent: a call with RPCRDMA_E_TOO_LONG, an answer with RPCRDMA_E_SYSTEM_ERROR at the caller.
 */
int rpcrdma_put_u32(struct rpcrdma_call *call,
                    uint32_t word);

/*
 Appends a hyper (an XDR unsigned hyper).
 */
int rpcrdma_put_u64(struct rpcrdma_call *call, uint64_t hyper);

/*
 Appends an opaque of variable length, or a string: length, data, and padding to a multiple of four. The data is copied into
 the stream.
 */
int rpcrdma_put_opaque(struct rpcrdma_call *call,
                       const void *data,
                       size_t bytes);

/*
 Appends bytes as they are, copied. A stream of XDR is a multiple of four bytes long. For programs with an XDR encoder of
 their own.
 */
int rpcrdma_put_bytes(struct rpcrdma_call *call,
                      const void *data,
                      size_t bytes);

/*
 Appends an opaque of variable length: the length in the stream, and the data beside it, sent from where it is; in the stream
 where the other end cannot take it otherwise, or where it is so short that a copy is faster. Takes the buffer, unless it
 fails. The program must permit this for the item (it is DDP-eligible, RFC 8166 section 6).
 */
int rpcrdma_put_bulk(struct rpcrdma_call *call,
                     struct rpcrdma_buffer *buffer);

/*
 As rpcrdma_put_bulk(), with data in ordinary memory, which is copied: into registered memory, or into the stream where there is
 none to spare.
 */
int rpcrdma_put_bulk_copy(struct rpcrdma_call *call,
                          const void *data,
                          size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RPCRDMA_H */
