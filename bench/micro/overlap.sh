#!/usr/bin/env bash
# overlap_bench (its first lines say what it prints) with two ranks:
#   bench/micro/overlap.sh one_host [FLAGS OF overlap_bench ...]
#   bench/micro/overlap.sh two_hosts RATE [FLAGS ...]     two network namespaces, each sends RATE at most (tc's words: 1gbit); needs root
# OVERLAP_BENCH=path of the program, if it is not build/release/bench/overlap_bench.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=${OVERLAP_BENCH:-$here/../../build/release/bench/overlap_bench}
form=${1:?one_host or two_hosts}
shift
export WORLD_SIZE=2 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=PASSIVE MASTER_PORT=$((20000 + $$ % 10000))

if [ "$form" = one_host ]; then
  RANK=1 "$program" "$@" &
  RANK=0 "$program" "$@"
  wait
  exit
fi

rate=$1
shift
a=tessera_$$_a b=tessera_$$_b
PATH=$PATH:/usr/sbin:/sbin
trap 'ip netns del $a 2>/dev/null || true; ip netns del $b 2>/dev/null || true' EXIT
ip netns add $a
ip netns add $b
ip -n $a link add wire type veth peer name wire netns $b
ip -n $a addr add 10.78.0.1/24 dev wire
ip -n $b addr add 10.78.0.2/24 dev wire
for side in $a $b; do
  ip -n $side link set wire up
  ip -n $side link set lo up
  ip netns exec $side tc qdisc add dev wire root tbf rate "$rate" burst 256kb latency 50ms
done
export MASTER_ADDR=10.78.0.1 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0
GROUP_RANK=1 RANK=1 ip netns exec $b "$program" "$@" &
GROUP_RANK=0 RANK=0 ip netns exec $a "$program" "$@"
wait
