#!/bin/sh
# Runs a command in a network namespace of its own, whose loopback carries RATE: slow_link.sh RATE COMMAND...
set -e
ip link set lo up
tc qdisc add dev lo root tbf rate "$1" burst 256kb latency 400ms
shift
exec "$@"
