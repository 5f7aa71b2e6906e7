# What .ci/run and .ci/long share; to be sourced from the repository's root.
# shellcheck shell=bash

export CARGO_TERM_COLOR=never
# README's commands look for the binaries in target/.
unset CARGO_TARGET_DIR

READY_LINE='^ready listen=([^ ,]+) dlm=[^ ]+:([0-9]+)( admin=[^ ]+)? io=[a-z]+ shards=[0-9]+$'

passed=0
failed=0
work=$(mktemp -d)
server_pid=
# README's servers keep their state here, not where the machine's would.
export STATE_DIRECTORY=$work/state

clean_up() {
    [ -z "$server_pid" ] || kill -KILL "$server_pid" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

# need COMMAND PACKAGE: installs the Debian package if the command is missing.
need() {
    command -v "$1" >/dev/null && return
    echo "== installing $2, for $1"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null
}

# need_component NAME: adds a component of the Rust toolchain if it is missing.
need_component() {
    cargo "$1" --version >/dev/null 2>&1 || rustup component add "$2"
}

need_tools() {
    [ -r "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    need cc build-essential
    need python3 python3
    need_component fmt rustfmt
    need_component clippy clippy
}

# A check that either holds or counts as one failure.
check() {
    local name=$1
    shift
    echo "== $name"
    "$@" || fail "$name"
}

fail() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# Runs tests, and adds what their `test result:` lines say to the totals.
cargo_tests() {
    local name=$1 log=$work/cargo-tests counts status=0
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$log" || status=$?
    counts=$(awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0, failed + 0 }' "$log")
    add_totals "$name" "$status" "${counts% *}" "${counts#* }"
}

# Runs unittest, and adds what its summary says to the totals.
python_tests() {
    local name=$1 log=$work/python-tests counts status=0
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$log" || status=$?
    counts=$(awk '
        /^Ran [0-9]+ tests?/ { ran = $2 }
        /^(OK|FAILED)/ {
            gsub(/^[A-Z]+ ?\(?|\)$/, "")
            for (i = split($0, parts, ", "); i > 0; i--) {
                split(parts[i], pair, "=")
                count[pair[1]] += pair[2]
            }
        }
        END {
            failed = count["failures"] + count["errors"] + count["unexpected successes"]
            print ran - failed - count["skipped"] - count["expected failures"], failed
        }' "$log")
    add_totals "$name" "$status" "${counts% *}" "${counts#* }"
}

add_totals() {
    local name=$1 status=$2
    passed=$((passed + $3))
    failed=$((failed + $4))
    if [ "$status" -ne 0 ] && [ "$4" -eq 0 ]; then
        fail "$name: exit status $status"
    elif [ "$status" -eq 0 ] && [ "$3" -eq 0 ]; then
        fail "$name: no test ran"
    fi
}

# fuzz SECONDS: runs each fuzz target for that long and says how often it did, where
# there are a nightly toolchain and cargo-fuzz. Elsewhere the tests have done it: they
# run the same functions over the same seeds, and what chance makes of them.
fuzz() {
    local target
    if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
        echo "== fuzz: there is no cargo-fuzz with a nightly toolchain here"
        return
    fi
    echo "== fuzz: build"
    # What is fuzzed has no unsafe code: a sanitizer would find nothing, slowly.
    if ! cargo +nightly fuzz build --sanitizer none; then
        fail "fuzz: build"
        return
    fi
    for target in $(cargo +nightly fuzz list); do
        echo "== fuzz: $target, $1 seconds"
        if fuzz_target "$target" "$1"; then
            passed=$((passed + 1))
        else
            fail "fuzz: $target"
        fi
    done
}

# The corpus that grows is nobody's but this machine's; the seeds are the repository's.
fuzz_target() {
    local target=$1 log=$work/fuzz-$1 status=0
    mkdir -p "fuzz/corpus/$target"
    cargo +nightly fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$2" -timeout=10 -print_final_stats=1 >"$log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || tail -n 60 "$log"
    awk -v target="$target" '/^stat::number_of_executed_units:/ { print target ": " $2 " executions" }' "$log"
    return "$status"
}

# readme_blocks MARK: writes README's fenced blocks that follow the comment
# `<!-- MARK -->` to $work/MARK-1, $work/MARK-2 and so on.
readme_blocks() {
    awk -v mark="<!-- $1 -->" -v to="$work/$1-" '
        /^```/ && inside { inside = 0; close(to n); next }
        /^```/ && marked { inside = 1; marked = 0; n++; printf "" > (to n); next }
        inside { print > (to n) }
        $0 == mark { marked = 1; next }
        NF { marked = 0 }' README.md
}

# Every shell block of README is one that the gate runs.
readme_is_covered() {
    local stray
    stray=$(awk '
        /^```/ && inside { inside = 0; next }
        /^```/ { inside = 1; if (/^```(sh|bash|shell)/ && !marked) print FILENAME ":" FNR; next }
        /^<!-- (tests|server|smoke) -->$/ { marked = 1; next }
        NF { marked = 0 }' README.md)
    [ -z "$stray" ] || { echo "shell blocks that nothing runs: $stray"; return 1; }
}

# Starts README's server and waits for its ready line, in $work/ready.
start_server() {
    readme_blocks server
    if ! python3 -c '
import socket
for address in ("127.0.0.1", 5327), ("0.0.0.0", 37373):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)' 2>/dev/null; then
        echo "the default ports are taken here: free ones instead"
        export LEASEHOLD_LISTEN=127.0.0.1:0 LEASEHOLD_DLM_LISTEN=127.0.0.1:0
    fi
    mkfifo "$work/stdout"
    # exec: the process that is told to end is the server itself.
    bash -c "exec $(<"$work/server-1")" >"$work/stdout" &
    server_pid=$!
    exec 3<"$work/stdout"
    IFS= read -r -t 600 -u 3 ready || { echo "no ready line"; return 1; }
    echo "$ready"
    [[ $ready =~ $READY_LINE ]] || return 1
    export LEASEHOLD_SERVER=${BASH_REMATCH[1]} DLM_PORT=${BASH_REMATCH[2]}
}

# Drains the server: it exits with 0 and has said nothing but its ready line.
stop_server() {
    local status=0 rest
    kill -TERM "$server_pid"
    wait "$server_pid" || status=$?
    server_pid=
    rest=$(cat <&3)
    [ "$status" -eq 0 ] && [ -z "$rest" ] || { echo "status $status, output: $rest"; return 1; }
}

# Runs what README tells to type, against README's server.
readme_smoke() {
    local block
    check "README: nothing is left out" readme_is_covered
    echo "== README: the server"
    start_server || { fail "README: the server"; return; }
    passed=$((passed + 1))
    readme_blocks smoke
    for block in $(printf '%s\n' "$work"/smoke-* | sort -V); do
        echo "== README: ${block##*/}"
        if timeout 120 bash -euo pipefail -c ". '$block'" </dev/null; then
            passed=$((passed + 1))
        else
            fail "README: ${block##*/}: $(cat "$block")"
        fi
    done
    check "README: the server drains" stop_server
}

# The totals, and the exit status they mean.
finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
