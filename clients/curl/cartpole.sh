#!/bin/sh
# Plays one episode of CartPole against a server of bray, with curl and awk alone.
#
#     sh cartpole.sh http://127.0.0.1:7301 my-session [STEPS]
#
# Prints each request on a line of its own: its kind, a blank, its body in JSON.
set -eu

address=$1
session=$2
steps=${3:-20}

# post KIND BODY: sends one request of the session, prints it, and sets `reply`.
post() {
    reply=$(curl --silent --show-error --fail-with-body "$address/step" \
        --header "session: $session" --header "step_kind: $1" \
        --header 'Content-Type: application/json' --data "$2")
    echo "$1 $2"
}

# step STATE ACTION: prints the next position, speed, angle and angular speed.
step() {
    awk -v state="$1" -v action="$2" 'BEGIN {
        split(state, s, ",")
        push = (action == 1 ? 10 : -10) + 0.05 * s[4] * s[4] * sin(s[3])
        turn = (9.8 * sin(s[3]) - cos(s[3]) * push / 1.1)
        turn = turn / (0.5 * (4 / 3 - 0.1 * cos(s[3]) ^ 2 / 1.1))
        speed = push / 1.1 - 0.05 * turn * cos(s[3]) / 1.1
        printf "%.6f,%.6f,%.6f,%.6f", s[1] + 0.02 * s[2], s[2] + 0.02 * speed,
            s[3] + 0.02 * s[4], s[4] + 0.02 * turn
    }'
}

state=0.01,-0.02,0.03,0.04
post start '{}'
post tick "{\"observation\": [$state]}"
while [ "$steps" -gt 1 ]; do
    action=$(echo "$reply" | sed 's/.*"action": *\([0-9]*\).*/\1/')
    state=$(step "$state" "$action")
    post tick "{\"observation\": [$state], \"reward\": 1}"
    steps=$((steps - 1))
done
post end "{\"observation\": [$state], \"reward\": 1, \"terminated\": false, \"truncated\": true}"
