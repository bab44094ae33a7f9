#!/usr/bin/env bash
# Collectives between hosts, comm_bench and after it gloo through the Python stack; hosts are network namespaces on a switch. Needs root.
#   bench/micro/hosts.sh HOSTS RANKS_PER_HOST RATE [MiB ...]     RATE: what each host sends at most (tc's words: 1gbit), or full
# COMM_BENCH=path of the program, if it is not build/release/bench/comm_bench. PYTHON=python with torch; none: gloo is left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=${COMM_BENCH:-$here/../../build/release/bench/comm_bench}
hosts=${1:?HOSTS} ranks=${2:?RANKS_PER_HOST} rate=${3:?RATE}
shift 3
export WORLD_SIZE=$((hosts * ranks)) LOCAL_WORLD_SIZE=$ranks OMP_NUM_THREADS=1 MASTER_ADDR=10.78.0.1 GLOO_SOCKET_IFNAME=wire
PATH=$PATH:/usr/sbin:/sbin
name=tessera_$$_
spaces() { seq 0 $((hosts - 1)); }
trap 'for h in $(spaces) s; do ip netns del $name$h 2>/dev/null || true; done' EXIT
ip netns add ${name}s
ip -n ${name}s link add bridge type bridge
ip -n ${name}s link set bridge up
for h in $(spaces); do
  ip netns add $name$h
  ip -n $name$h link add wire type veth peer name port$h netns ${name}s
  ip -n ${name}s link set port$h master bridge up
  ip -n $name$h addr add 10.78.0.$((h + 1))/24 dev wire
  ip -n $name$h link set wire up
  ip -n $name$h link set lo up
  [ "$rate" = full ] || ip netns exec $name$h tc qdisc add dev wire root tbf rate "$rate" burst 256kb latency 50ms
done
everywhere() {
  export MASTER_PORT=$((20000 + RANDOM % 10000))
  for h in $(spaces); do
    for k in $(seq 0 $((ranks - 1))); do
      RANK=$((h * ranks + k)) LOCAL_RANK=$k GROUP_RANK=$h ip netns exec $name$h "$@" &
    done
  done
  wait
}
everywhere "$program" "$@"
[ -z "${PYTHON:-}" ] || everywhere "$PYTHON" "$here/../peers/collectives.py" "$@"
