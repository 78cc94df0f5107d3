#!/bin/sh
# Counts the instructions of the codec's hot paths under callgrind, and fails when a header decode and encode of a
# call without chunks does not stay below the budget of docs/performance.md together. The counts do not depend on the
# machine's load, only on compiler and target.
#
# Needs valgrind, as `./check` says when it is missing.
set -eu
cd "$(dirname "$0")/.."

budget=100
iterations=1000
target_dir=${CARGO_TARGET_DIR:-target}
profile=$(mktemp)
trap 'rm -f "$profile"' EXIT

cargo build --quiet --release -p rpcrdma-protocol --example instruction_count
valgrind --quiet --tool=callgrind --callgrind-out-file="$profile" \
    "$target_dir/release/examples/instruction_count"

# Inclusive cost of every measured function, per call.
counts=$(callgrind_annotate --inclusive=yes --threshold=100 "$profile" | awk -v n="$iterations" '
    match($0, /measured_[a-z0-9_]+/) {
        name = substr($0, RSTART + 9, RLENGTH - 9)
        count = $1; gsub(",", "", count)
        if (!(name in seen)) { seen[name] = 1; printf "%s %.1f\n", name, count / n }
    }' | sort)
echo "$counts" | awk '{ printf "%-24s %6.1f instructions\n", $1, $2 }'

# Each measured function must be in the profile: one that was inlined or folded into another measures nothing.
measured=$(echo "$counts" | grep -c .)
expected=$(grep -c '^fn measured_' dataplane/protocol/examples/instruction_count.rs)
if [ "$measured" -ne "$expected" ]; then
    echo "instruction_counts: $measured of $expected measured functions are in the profile" >&2
    exit 1
fi

echo "$counts" | awk -v budget="$budget" '
    $1 == "v2_decode_call_whole" || $1 == "v2_encode_call" { sum += $2 }
    END {
        printf "%-24s %6.1f instructions, budget below %d\n", "decode + encode", sum, budget
        exit !(sum > 0 && sum < budget)
    }' || { echo "instruction_counts: over budget" >&2; exit 1; }
