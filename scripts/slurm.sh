#!/usr/bin/env bash
# Runs a command on the login host of a SLURM cluster that this machine plays, and takes the cluster away when the command ends.
#   scripts/slurm.sh [COMMAND ...]            none: a shell. In it: sinfo, srun, sbatch, salloc, ...
#   NODES=3 scripts/slurm.sh sbatch --wait job.sbatch
# Each node (n1, n2, ...) is a set of namespaces: it has its own network (10.78.0.N on a switch), host name and processes, and tells SLURM
# of 64 cores and 4 GPUs. `power off n1` and `power on n1` do what a machine's switch does. The logs are in /run while the cluster is there.
# Needs root and Debian's packages: apt-get install --no-install-recommends slurm-wlm munge iproute2
# For srun --mpi=pmi2 with MPI also mpich, for --mpi=pmix openmpi-bin and libpmix-dev.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
nodes=${NODES:-2}

. "$(dirname "$0")/lib.sh"

if [ "${1:-}" != --inside ]; then
    for tool in slurmctld slurmd munged ip; do
        command -v $tool >/dev/null || fail "$tool is missing: apt-get install --no-install-recommends slurm-wlm munge iproute2"
    done
    [ "$(id -u)" -eq 0 ] || fail "namespaces of a network need root"
    # With the first process of this namespace all end, and the networks and /run with them: nothing is left to remove.
    exec unshare --mount --net --pid --ipc --uts --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift
mount -t tmpfs tmpfs /run
mkdir -m 755 /run/munge /run/ctld
hostname login
export SLURM_CONF=/run/slurm.conf
cat >$SLURM_CONF <<END
ClusterName=played
SlurmctldHost=login(10.78.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=/run/ctld
SlurmdSpoolDir=/run/%n
TmpFS=/run/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/%n.slurmd.pid
SlurmctldLogFile=/run/slurmctld.log
SlurmdLogFile=/run/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
KillWait=20
MinJobAge=3600
NodeName=n[1-$nodes] NodeAddr=10.78.0.[1-$nodes] CPUs=64 RealMemory=64000 Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO
END
echo CgroupPlugin=cgroup/v1 >/run/cgroup.conf # which needs no control groups while no other plugin does
echo "Name=gpu File=/run/gpu[0-3]" >/run/gres.conf
for k in 0 1 2 3; do mknod "/run/gpu$k" c 1 3; done # as /dev/null
{ echo "127.0.0.1 localhost"; echo "10.78.0.254 login"; for n in $(seq "$nodes"); do echo "10.78.0.$n n$n"; done; } >/run/hosts
mount --bind /run/hosts /etc/hosts

ip link set lo up
ip link add bridge type bridge
ip link set bridge up
ip addr add 10.78.0.254/24 dev bridge

mkdir /run/bin
cat >/run/bin/power <<'END'
#!/usr/bin/env bash
# power on|off NODE
set -euo pipefail
if [ "$1" = on ]; then
    ip link set "port${2#n}" up
    # shellcheck disable=SC2016
    setsid ip netns exec "$2" unshare --mount --pid --ipc --uts --fork --kill-child --mount-proc bash -c 'hostname $1 && exec slurmd -D' node "$2" \
        </dev/null >"/run/$2.out" 2>&1 &
    echo $! >"/run/$2.pid"
else
    ip link set "port${2#n}" down # nobody hears that it is gone
    kill -KILL "$(cat "/run/$2.pid")"
fi
END
chmod 755 /run/bin/power
export PATH=/run/bin:$PATH

(umask 077 && head -c 64 /dev/urandom >/run/munge.key)
munged --force --key-file=/run/munge.key --log-file=/run/munged.log --pid-file=/run/munged.pid --seed-file=/run/munged.seed
slurmctld
for n in $(seq "$nodes"); do
    ip netns add "n$n"
    ip link add "port$n" type veth peer name wire netns "n$n"
    ip link set "port$n" master bridge
    ip -n "n$n" addr add "10.78.0.$n/24" dev wire
    ip -n "n$n" link set wire up
    ip -n "n$n" link set lo up
    mkdir "/run/n$n"
    power on "n$n"
done
all_idle() { [ "$(sinfo --noheader --format %D --states idle)" = "$nodes" ]; }
for _ in $(seq 100); do
    if all_idle; then break; fi
    sleep 0.1
done
all_idle || fail "SLURM does not start; its logs:" "$(tail -n 20 /run/*.log /run/*.out)"
status=0
"${@:-bash}" || status=$?
exit $status # not exec: this process ends all others
