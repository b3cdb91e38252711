#!/bin/sh
# Catch with a shell and curl: a ball falls, a paddle must be below it. Bodies are JSON.
#
#     sh catch.sh HTTP_PORT [SEED]
set -eu
address=http://127.0.0.1:$1/step
seed=${2:-1}
spaces='{"observation": {"shape": [3]}, "action": {"discrete": 3}}'

# post KIND BODY: sends a request of the session; while the policy is being made, curl tries again.
post() {
    reply=$(curl --silent --show-error --fail-with-body --retry 100 --retry-connrefused \
        --header "session: $session" --header "step_kind: $1" \
        --header 'Content-Type: application/json' --data "$2" "$address")
}

game=0
while :; do
    game=$((game + 1)) row=0 paddle=2 reward=0
    seed=$(((seed * 1103515245 + 12345) % 2147483648)) ball=$((seed / 65536 % 5))
    session=0/$game
    post start "{\"spaces\": $spaces}"
    while [ $row -lt 5 ]; do
        post tick "{\"observation\": [$((ball - 2)), $((row - 2)), $((paddle - 2))], \"reward\": 0}"
        action=$(echo "$reply" | sed 's/.*"action": *\([0-9]*\).*/\1/')
        row=$((row + 1)) paddle=$((paddle + action - 1))
        if [ $paddle -lt 0 ]; then paddle=0; elif [ $paddle -gt 4 ]; then paddle=4; fi
    done
    if [ $paddle -eq $ball ]; then reward=1; else reward=-1; fi
    post end "{\"reward\": $reward, \"terminated\": true}"
done
