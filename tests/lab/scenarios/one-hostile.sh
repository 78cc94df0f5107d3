#!/usr/bin/env bash
# Hostile peers, written against libibverbs alone (../hostile-peer.c), at a server on the device, and what a neighbour
# sees that makes null calls all the time: for each attack first undisturbed, then while the peer attacks. No call of
# the neighbour may fail, the server has to say what became of the peer, and must hold nothing of it afterwards. How
# long the calls took is printed as a table, and never judged.
#
# With HOSTILE_SHORT=1 it takes about a minute: three of the attacks, and no phases without an attack, so no table.
# NEIGHBOUR_SECONDS is how long the neighbour calls in each phase at least. With ELSEWHERE=1 there is a third phase, in
# which the peer attacks another server on the same processor: what the neighbour sees then is the load of the guest.
. "$(dirname "$0")/common.sh"

short=${HOSTILE_SHORT:-}
# One who says nothing, one who posts no Receives, and one who withholds credits.
short_attacks=' silent no-receives one-credit '
seconds=${NEIGHBOUR_SECONDS:-4}
metrics_port=$((port + 1))
other_port=$((port + 2))
neighbour_metrics=127.0.0.1:$((port + 3))
cat >"$work/profile.toml" <<'END'
base = "rxe"

[settings]
idle = "park"
# TIME: the server waits for so long for what a peer owes it. The neighbour owes it something only while it connects, so a
# pause of the neighbour at any other time does no harm.
stall_timeout_ms = 15000
keep_alive_silent_ticks_max = 120
END

serve() {
    "$bench" serve --listen "rdma:$LAB_IP:$port" --profile "$work/profile.toml" --cores 1 \
        --metrics 127.0.0.1:$metrics_port --log-level info \
        </dev/null >"$work/server" 2>"$work/server.log" &
    server=$!
    eventually while_runs $server contains "$work/server" '^listening on '
}

serve_elsewhere() {
    "$bench" serve --listen "rdma:$LAB_IP:$other_port" --profile "$work/profile.toml" --cores 1 \
        </dev/null >"$work/other" 2>&1 &
    other=$!
    eventually while_runs $other contains "$work/other" '^listening on '
}

start_neighbour() { # start_neighbour PHASE: it calls until it gets SIGINT
    "$bench" run --connect "rdma:$LAB_IP:$port" --profile "$work/profile.toml" "${patient[@]}" --cores 0 \
        --op null --rate 50 --warmup 0 --duration 60m --json "$work/$1.json" --quiet \
        --metrics $neighbour_metrics </dev/null 2>"$work/$1.errors" &
    neighbour=$!
    eventually while_runs $neighbour is_counted 'connections[{]' 1 || { cat "$work/$1.errors" "$work/server.log"; return 1; }
}

# The sum of the samples whose names and labels the pattern fits.
counted() { # counted REGEX
    local page
    exec 4<>"/dev/tcp/127.0.0.1/$metrics_port" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&4 && page=$(cat <&4)
    exec 4>&-
    awk -v regex="^rpcrdma_$1" '$0 ~ regex { sum += $2 } END { print sum + 0 }' <<<"$page"
}
is_counted() { [ "$(counted "$1")" -eq "$2" ]; } # is_counted REGEX VALUE
rose() { [ $(($(counted "$1") - $2)) -ge "$3" ]; } # rose REGEX BEFORE BY_AT_LEAST

# The first value of a name in a report is that of the whole run.
reported() { grep -oE -m 1 "\"$2\": [0-9]+" "$work/$1.json" | grep -oE '[0-9]+$'; } # reported PHASE NAME
ms() { awk -v ns="$(reported "$1" "$2")" 'BEGIN { printf "%.1f", ns / 1e6 }'; } # ms PHASE NAME
ratio() { # ratio PHASE PHASE: of their p99
    awk -v a="$(reported "$1" p99)" -v b="$(reported "$2" p99)" 'BEGIN { printf "%.1f", a / b }'
}
row() { # row ATTACK WHAT_BECAME_OF_IT
    local alone=$1-alone
    printf '| %s | %s, %s | %s, %s | %s, %s | %s | %s, %s | %s | %s |\n' "$1" \
        "$(reported "$alone" calls)" "$(reported "$1" calls)" "$(ms "$alone" p50)" "$(ms "$1" p50)" \
        "$(ms "$alone" p99)" "$(ms "$1" p99)" "$(ratio "$1" "$alone")" "$(ms "$alone" max)" "$(ms "$1" max)" \
        "$([ ! -e "$work/$1-elsewhere.json" ] || ratio "$1-elsewhere" "$alone")" "$2" >>"$work/table"
}

# The neighbour calls while COMMAND is run. The file `reasons` is then why connections of the server ended, each with its
# number.
beside() { # beside PHASE COMMAND...
    local name=$1 lines begun
    shift
    lines=$(wc -l <"$work/server.log")
    check "$name: a neighbour calls" start_neighbour "$name"
    begun=$SECONDS
    "$@"
    # So that there are calls enough. TIME: no less than that, whatever the attack took.
    until [ $((SECONDS - begun)) -gt "$seconds" ]; do sleep 0.1; done
    check "$name: they are" eventually while_runs "$neighbour" has_made $neighbour_metrics 50
    check "$name: the neighbour is asked to end" kill -INT "$neighbour"
    check "$name: it ends in good order" wait "$neighbour" || cat "$work/$name.errors"
    check "$name: it made calls" test "$(reported "$name" calls)" -ge 50
    check "$name: none of them failed" test "$(reported "$name" errors)" -eq 0
    check "$name: the server has no connection left" eventually while_runs $server is_counted 'connections[{]' 0
    check "$name: and all its buffers" eventually while_runs $server is_counted pool_free_buffers "$free"
    tail -n +$((lines + 1)) "$work/server.log" | sed -n 's/.* connection_closed .*reason="\([^"]*\)".*/\1/p' |
        sort | uniq -c | sed 's/^ *//' >"$work/reasons"
}

plays() { "$PROGRAMS/hostile-peer" "$LAB_IP" "$2" "$1" >"$work/peer"; } # plays ATTACK PORT

# An attack, a counter that rises by one for each of its connections at least, and the reason for which they end.
attack() { # attack NAME COUNTER REASON
    local before
    [[ -z $short || $short_attacks == *" $1 "* ]] || return 0
    [ -n "$short" ] || beside "$1-alone" true
    [ -z "${ELSEWHERE:-}" ] ||
        beside "$1-elsewhere" check "$1: the peer does it to another server first" plays "$1" "$other_port"
    before=$(counted "$2")
    beside "$1" check "$1: the peer does what it can, and its connections end" plays "$1" "$port"
    sed 's/^/    /' "$work/peer" "$work/reasons"
    check "$1: the server counts them" rose "$2" "$before" "$(sed -n 's/ connections$//p' "$work/peer")"
    check "$1: and says why they ended" contains "$work/reasons" "$3"
    [ -n "$short" ] || row "$1" "$(grep -E "$3" "$work/reasons" | paste -sd ';')$(sed -n 's/^the server ended .* them/; it ended them/p' "$work/peer")"
}

check "the server listens" serve || exit 1
check "it is called once before its buffers are counted" start_neighbour first || exit 1
kill -INT "$neighbour" && wait "$neighbour"
check "that has ended" eventually while_runs $server is_counted 'connections[{]' 0
free=$(counted pool_free_buffers)

[ -z "${ELSEWHERE:-}" ] || check "another server listens" serve_elsewhere || exit 1

attack silent 'connections_left_total.*stalled' 'its first message'
attack no-receives 'connections_left_total.*stalled' 'Receives for what is sent to it'
attack deaf 'connections_left_total.*stalled' 'Receives for what is sent to it'
attack one-credit 'connections_left_total.*stalled' 'credits for the replies to its calls'
attack beyond-credits 'connections_left_total.*protocol' 'more messages than it had credits for'
attack bad-keys 'rdma_operations_total' 'closed the connection or is gone'
reads=$(counted 'rdma_operations_total.*read') octets=$(counted 'bulk_bytes_total.*rdma_read')
attack killed 'rdma_operations_total.*read' 'closed the connection or is gone'
reads=$(($(counted 'rdma_operations_total.*read') - reads)) octets=$(($(counted 'bulk_bytes_total.*rdma_read') - octets))
[ -n "$short" ] ||
    check "killed: of $reads MiB that were being read, all did not come: $octets octets" test $((reads << 20)) -gt $octets
attack garbage 'connections_closed_total' 'broke the protocol'
attack storm 'connections_opened_total' 'closed the connection or is gone'
check "the server is asked to end" kill -TERM "$server"
check "it ends in good order" wait "$server"
[ -z "${ELSEWHERE:-}" ] || check "the other one, too" kill -TERM "$other"

[ -z "$short" ] || exit 0
printf 'the neighbour undisturbed and attacked; times in ms; the ratios are of p99 to that of the undisturbed neighbour\n'
printf '| Attack | Calls | p50 | p99 | Ratio | Longest | Ratio elsewhere | Why the connections of the peer ended |\n'
printf '|---|--:|--:|--:|--:|--:|--:|---|\n'
cat "$work/table"
