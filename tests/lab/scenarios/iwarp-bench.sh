#!/usr/bin/env bash
# bench-tool on software iWARP, between two processes of one guest: calls of both versions, payloads in messages,
# placed by Sends, and by RDMA Write through memory that is registered for the call, and what is refused there. Then first
# messages that software iWARP does not read when they arrive.
. "$(dirname "$0")/common.sh"

cat >"$work/register.toml" <<'END'
[settings]
without_windows = "register"
END

serve() { # serve OPTION...
    listens "$work/server" "$bench" serve --listen "rdma:$LAB_IP:0" "${patient[@]}" "$@" && server=$started
}

listening_on() { sed -n 's/^listening on \([^ ]*\).*/\1/p' "$work/server"; }

run() { "$bench" run --connect "$(listening_on)" "${patient[@]}" --warmup 0 "$@" </dev/null; }

ends_well() {
    check "the server is asked to end" kill -TERM "$server"
    check "it ends in good order" wait "$server"
}

check "the server listens" serve
for protocol in v1 v2; do
    check "$protocol: null calls" run --protocol $protocol --op null --depth 8 --connections 2 --count 500
done
# A call of version 1 that is longer than a message would have to be read.
check "v1: echoes of 512 octets" run --protocol v1 --op echo --size 512 --count 100
check "v2: echoes of 100 KB, in several Sends" run --protocol v2 --op echo --size 100k --count 30
for op in read write; do
    check "v1: $op in the message" run --protocol v1 --op $op --size 512 --placement inline --count 100
    check "v2: $op in messages" run --protocol v2 --op $op --size 16KiB --placement inline --count 50
    check "v2: $op placed by Sends" run --protocol v2 --op $op --size 16KiB --placement send --count 50
done
check "a report" run --op null --count 100 --json "$work/report.json"
check "it names the fabric and the device" grep -q "\"$LAB_DEV\"" "$work/report.json"
ends_well

check "a server whose clients expose memory" serve --profile "$work/register.toml"
for protocol in v1 v2; do
    check "$protocol: reads of 64 KiB by RDMA Write" run --protocol $protocol --profile "$work/register.toml" \
        --op read --size 64KiB --placement rdma --count 50
done
ends_well

# Software iWARP of the lab waits so long between two steps of an accept. What arrives between them is not read until
# more bytes arrive (docs/verbs.md).
pause=/sys/module/siw/parameters/accept_pause_ms
at_end() { echo 0 >$pause; }
has_unread_bytes() { [ -n "$(ss -tnH "sport = :${server_port:?}" | awk '$2 > 0')" ]; }

# The message stays unread for the pause, five seconds, and until the next tick. Where nobody looks for so long, another
# client is to meet it.
# TIME: without a probe the client fails, by its limit for a connect or for a call: a minute, of which the pause and the
# first probe take six seconds. No end counts the other as dead before, which would take two minutes here.
is_answered() { # is_answered PROTOCOL
    local client tries
    for tries in 1 2 3 4 5; do
        run --protocol "$1" --op null --count 20 --set connect_timeout_ms=60000 --set call_timeout_ms=60000 \
            >"$work/late" 2>&1 &
        client=$!
        if eventually while_runs $client has_unread_bytes; then
            wait $client && return 0
            cat "$work/late"
            return 1
        fi
        wait $client || { cat "$work/late"; return 1; }
        echo "    try $tries: nobody saw its first message unread"
    done
    return 1
}

check "a server that is to accept slowly" serve
server_port=$(listening_on)
server_port=${server_port##*:}
check "accepts pause" eval "echo 5000 >$pause"
for protocol in v1 v2; do
    check "$protocol: a first message that stayed unread is answered" is_answered $protocol
done
check "accepts do not pause" at_end
ends_well
