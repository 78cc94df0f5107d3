# shellcheck shell=bash
# Sourced by every scenario, which runs in guest a (scenarios/pair-*) or in a lone guest
# (scenarios/one-*). What a scenario shows is a list of checks, each told by `check`, in the words
# of a test: "test NAME ... ok"; its last line is the summary that ./check counts.
#
# PROGRAMS is the folder with bench-tool and ledger, set by tests/lab/suites.
# shellcheck disable=SC2034 # work, port and answer are for the scenario
set -u

scenario=$(basename "${BASH_SOURCE[1]:-$0}" .sh)
passed=0
failed=0
work=$(mktemp -d /tmp/scenario.XXXXXX)
port=$((20000 + RANDOM % 10000))

check() { # check NAME COMMAND...: a check that passes when the command succeeds
    local name=$1 status
    shift
    "$@"
    status=$?
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        printf 'test %s: %s ... ok\n' "$scenario" "$name"
    else
        failed=$((failed + 1))
        printf 'test %s: %s ... FAILED (%s: exit status %d)\n' "$scenario" "$name" "$*" "$status"
    fi
    return $status
}

finish() {
    local word=ok
    # shellcheck disable=SC2046 # process ids
    kill -KILL $(jobs -p) 2>/dev/null
    if [ $failed -gt 0 ] || [ $passed -eq 0 ]; then word=FAILED; fi
    printf 'test result: %s. %d passed; %d failed; 0 ignored\n' "$word" "$passed" "$failed"
    [ $word = ok ]
    exit
}
trap finish EXIT

# Waits, for at most SECONDS, until the command succeeds.
within() { # within SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.1
    done
}

contains() { grep -qE -- "$2" "$1" 2>/dev/null; } # contains FILE REGEX

# --- Guest b: a command line for its agent (guest/agent) ----------------------------------------

asked=0

# Starts a command line in guest b; `answer` is then the start of its files' names.
start_on_b() { # start_on_b COMMAND_LINE
    asked=$((asked + 1))
    answer=/out/b/$scenario-$asked
    # Whoever stops the command by its process id finds it in NAME.pid.
    printf 'echo $$ >%q\nexec %s\n' "$answer.pid" "$1" >"$answer.new"
    mv "$answer.new" "$answer.request"
}

# Runs a command line in guest b, shows its output, and returns its exit status.
on_b() { # on_b COMMAND_LINE
    local name
    asked=$((asked + 1))
    name=/out/b/$scenario-$asked
    printf '%s\n' "$1" >"$name.new"
    mv "$name.new" "$name.request"
    until [ -e "$name.status" ]; do sleep 0.05; done
    cat "$name.output"
    return "$(cat "$name.status")"
}
