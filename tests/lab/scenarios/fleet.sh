# shellcheck shell=bash
# Sourced by pair-fleet.sh and five-fleet.sh: bench-tool's fleet against a server in this guest, with clients in the others,
# which ssh launches as docs/fleet.md says. Once all of them, and once with an agent that is killed while it runs.
# `clients` names the guest of each client, and `victim` that of the agent that is killed.
# shellcheck disable=SC2154
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

guests=$(tr , '\n' <<<"$clients" | sort -u)
read -ra hosts <<<"${clients//,/ }"
metrics=127.0.0.1:9465

everywhere() { # everywhere COMMAND...: with each of the guests
    local guest
    for guest in $guests; do "$@" "$guest" || return; done
}

# Keys that need no answer, and no hosts that are known from before.
prepare_ssh() {
    mkdir -p ~/.ssh && chmod 700 ~/.ssh &&
        dropbearkey -t ed25519 -f "$work/host-key" >/dev/null 2>&1 &&
        ssh-keygen -q -t ed25519 -N '' -f "$work/key" &&
        cp "$work/host-key" "$work/key.pub" /out/ &&
        printf '%s\n' 'Host b c d e' "IdentityFile $work/key" 'StrictHostKeyChecking no' \
            'UserKnownHostsFile /dev/null' 'LogLevel ERROR' >~/.ssh/config
}
serve_ssh() { # serve_ssh GUEST
    on "$1" 'mkdir -p ~/.ssh && chmod 700 ~/.ssh && cp /out/key.pub ~/.ssh/authorized_keys &&
        dropbear -r /out/host-key -p 22'
}
end_ssh() { on "$1" 'kill -KILL $(pidof dropbear) 2>/dev/null'; } # end_ssh GUEST
at_end() { everywhere end_ssh; }

serve() {
    listens "$work/server" "$bench" serve --listen "rdma:$LAB_IP:$port" "${patient[@]}" --set idle=park
}

# Sets `command` to that of a fleet whose report is in NAME.json and NAME.hgrm.
# TIME: the limits for a start, for a sign of life, of a call and of ssh are minutes: guests stand still.
fleet_of() { # fleet_of NAME OPTION_OF_THE_CLIENTS...
    command=("$bench" fleet --launch "ssh -o BatchMode=yes -o ServerAliveInterval=100 {host} $bench agent" --hosts "$clients"
        --start-timeout ${patience_s}s --silence-timeout ${patience_s}s
        --metrics $metrics --json "$work/$1.json" --hgrm "$work/$1.hgrm"
        -- run --connect "rdma:$LAB_IP:$port" "${patient[@]}" --set idle=park --depth 4 --warmup 0 "${@:2}")
}

# How many clients have completed at least so many calls.
clients_with() { # clients_with CALLS
    scrape $metrics 2>/dev/null | awk -v least="$1" '
        /^rpcrdma_load_calls_total\{.*outcome="completed"\} / && $2 >= least { count++ }
        END { print count + 0 }'
}
make_calls() { [ "$(clients_with "$2")" -ge "$1" ]; } # make_calls CLIENTS CALLS
is_missed() { scrape $metrics 2>/dev/null | grep -q '^rpcrdma_fleet_clients{state="lost"} 1'; }
# The most calls that a client has completed.
most_calls() {
    scrape $metrics | awk '
        /^rpcrdma_load_calls_total\{.*outcome="completed"\} / && $2 > most { most = $2 }
        END { print most + 0 }'
}

reports() { # reports NAME FILTER [OPTION...]: it is true of the report
    jq -e "${@:3}" "$2" "$work/$1.json"
}

# The calls of all clients are those of their reports, and of the merged histogram.
adds_up() { # adds_up NAME
    local total
    total=$(sed -nE 's/.*Total count *= *([0-9]+).*/\1/p' "$work/$1.hgrm")
    reports "$1" '.calls > 0 and .calls == ([.clients[].calls] | add) and .calls == ([.clients[].report.calls] | add)
        and .calls == $total' --argjson total "${total:-0}"
}

# Other scenarios may have left servers there.
has_no_agent() { on "$1" '! pgrep -f "[b]ench-tool agent"'; } # has_no_agent GUEST

check "keys for ssh" prepare_ssh
check "the other guests take ssh" everywhere serve_ssh
check "the server listens" serve
# TIME: so long that each client makes calls, where one stands still for some seconds.
fleet_of whole --duration 10s
check "a fleet of ${#hosts[@]} clients" "${command[@]}"
check "its calls are those of its clients and of its histogram" adds_up whole
check "every client is named with its host and its machine" reports whole \
    '([.clients[] | .host] | join(",")) == $clients and all(.clients[]; .node == .host) and .failures == []' \
    --arg clients "$clients"
check "it tells of fairness and of the skew of the starts" reports whole \
    '.fairness * (.clients | length) >= 1 and .fairness <= 1 and .start_uncertainty_ns_max > 0
        and all(.clients[]; .start_skew_ns != null)'
jq -c '{fairness, start_skew_ns_max, start_uncertainty_ns_max, rates: [.clients[].rate_per_s]}' "$work/whole.json"

# TIME: it makes calls for far longer than it takes to kill an agent, and to see the others go on. Then it is asked to end.
fleet_of killed --duration 60m
# Not by a function: the signal is for the program.
"${command[@]}" </dev/null >"$work/output" 2>&1 &
fleet=$!
others=$((${#hosts[@]} - 1))
status=0
check "all clients make calls" eventually while_runs $fleet make_calls ${#hosts[@]} 1
check "an agent is killed" on "$victim" 'kill -KILL $(pgrep -nf "[b]ench-tool agent")'
check "it is missed" eventually while_runs $fleet is_missed
# Who was killed makes no more.
check "the others go on" eventually while_runs $fleet make_calls $others $(($(most_calls) + 20))
check "the fleet is asked to end" kill -INT $fleet
wait $fleet || status=$?
cat "$work/output"
check "the fleet fails, after its report" test $status = 1
check "it names the client that died, and no other" reports killed \
    '[.failures[] | [.host, .when]] == [[$victim, "while it ran"]]' --arg victim "$victim"
check "the others report all that they did" reports killed \
    '(.clients | length) == $count - 1 and all(.clients[]; .calls >= 20)' --argjson count ${#hosts[@]}
check "their calls are those of the histogram" adds_up killed
check "no agent is left" eventually everywhere has_no_agent
