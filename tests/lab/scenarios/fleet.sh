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
    "$bench" serve --listen "rdma:$LAB_IP:$port" --set idle=park </dev/null >"$work/server" 2>&1 &
    within 60 contains "$work/server" '^listening on '
}

fleet() { # fleet NAME TIME: files NAME.json and NAME.hgrm
    "$bench" fleet --launch "ssh -o BatchMode=yes -o ServerAliveInterval=5 {host} $bench agent" --hosts "$clients" \
        --start-timeout 120s --metrics $metrics --json "$work/$1.json" --hgrm "$work/$1.hgrm" \
        -- run --connect "rdma:$LAB_IP:$port" "${patient[@]}" --set idle=park --depth 4 --warmup 0 --duration "$2" </dev/null
}

all_make_calls() {
    local made
    made=$(scrape $metrics 2>/dev/null | grep -cE '^rpcrdma_load_calls_total\{.*outcome="completed"\} [1-9]')
    [ "${made:-0}" -eq ${#hosts[@]} ]
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
check "a fleet of ${#hosts[@]} clients" fleet whole 3s
check "its calls are those of its clients and of its histogram" adds_up whole
check "every client is named with its host and its machine" reports whole \
    '([.clients[] | .host] | join(",")) == $clients and all(.clients[]; .node == .host) and .failures == []' \
    --arg clients "$clients"
check "it tells of fairness and of the skew of the starts" reports whole \
    '.fairness * (.clients | length) >= 1 and .fairness <= 1 and .start_uncertainty_ns_max > 0
        and all(.clients[]; .start_skew_ns != null)'
jq -c '{fairness, start_skew_ns_max, start_uncertainty_ns_max, rates: [.clients[].rate_per_s]}' "$work/whole.json"

fleet killed 30s >"$work/output" 2>&1 &
fleet=$!
status=0
check "all clients make calls" within 120 all_make_calls
check "an agent is killed" on "$victim" 'kill -KILL $(pgrep -nf "[b]ench-tool agent")'
wait $fleet || status=$?
cat "$work/output"
check "the fleet fails, after its report" test $status = 1
check "it names the client that died, and no other" reports killed \
    '[.failures[] | [.host, .when]] == [[$victim, "while it ran"]]' --arg victim "$victim"
check "the others go on to their end" reports killed \
    '(.clients | length) == $count - 1 and all(.clients[]; .report.duration_s > 29.5)' --argjson count ${#hosts[@]}
check "their calls are those of the histogram" adds_up killed
check "no agent is left" within 60 everywhere has_no_agent
