#!/usr/bin/env python3
"""Step times that `tessera estimate --link` predicts, beside measured ones, on hosts that are network namespaces with limited links.

    bench/e2e/predicted_hosts.py HOSTS [HOSTS ...] --rates 1gbit 400mbit [--out FILE]      needs root, iproute2 and train_bench, comm_bench

A row for each number of hosts (one rank each), rate and strategy. Three things are measured for it and given to the estimate:
 - the rank's rate of products: all ranks train at the same time, each for itself, without communication; what the estimate says of a step's
   memory traffic is subtracted;
 - the rate and the latency of a link: all-gathers of two sizes;
 - the rate of memory: as the estimate measures it by itself.
Then the ranks train together. Steps are medians of rank 0's, the first left out.
"""
import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
             head_dim=64, vocab_size=2048)
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"]
COLUMNS = {"FULL_SHARD": 2, "SHARD_GRAD_OP": 3, "HYBRID_SHARD": 4}
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}


class Hosts:
    """Network namespaces on a switch; each sends no more than `rate`."""

    def __init__(self, hosts, rate):
        self.name, self.hosts = f"tessera_{os.getpid()}_", hosts
        self.ip("netns add @s")
        self.ip("-n @s link add bridge type bridge")
        self.ip("-n @s link set bridge up")
        for h in range(hosts):
            self.ip(f"netns add @{h}")
            self.ip(f"-n @{h} link add wire type veth peer name port{h} netns @s")
            self.ip(f"-n @s link set port{h} master bridge up")
            self.ip(f"-n @{h} addr add 10.78.0.{h + 1}/24 dev wire")
            self.ip(f"-n @{h} link set wire up")
            self.ip(f"-n @{h} link set lo up")
            self.ip(f"netns exec @{h} tc qdisc add dev wire root tbf rate {rate} burst 256kb latency 50ms")

    def ip(self, words):
        subprocess.run(["ip", *words.replace("@", self.name).split()], check=True)

    def close(self):
        for h in [*range(self.hosts), "s"]:
            subprocess.run(["ip", "netns", "del", f"{self.name}{h}"], check=False)

    def run(self, command, together=True):
        """On every host; returns what rank 0 has printed. Not together: each is a world of its own."""
        port, running = str(random.randint(20000, 29999)), []
        for h in range(self.hosts):
            variables = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
            if together:
                variables.update(RANK=str(h), WORLD_SIZE=str(self.hosts), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                                 GROUP_RANK=str(h), MASTER_ADDR="10.78.0.1", MASTER_PORT=port)
            words = [word.replace("{host}", str(h)) for word in command]
            running.append(subprocess.Popen(["ip", "netns", "exec", f"{self.name}{h}", *words], env=variables,
                                            stdout=subprocess.PIPE, text=True))
        printed = [process.communicate(timeout=300)[0] for process in running]
        assert all(process.returncode == 0 for process in running), [process.returncode for process in running]
        return printed[0]


def step_seconds(file):
    rows = [json.loads(line) for line in open(file)]
    return statistics.median(row["step_seconds"] for row in rows[1:] if "step_seconds" in row)


def link_curve(hosts, program):
    """Bytes a second, and seconds until a message arrives: an operation is three messages and its bytes."""
    times = {}
    for line in hosts.run([program, "1", "8"]).splitlines():
        row = json.loads(line)
        if row["op"] == "all_gather" and row["dtype"] == "fp32":
            times[row["mib"]] = row["ms"] / 1e3
    moved = (8 - 1) * 2**20 * (hosts.hosts - 1) / hosts.hosts
    rate = moved / (times[8] - times[1])
    first = times[1] - 2**20 * (hosts.hosts - 1) / hosts.hosts / rate
    return rate, max(first / 3, 1e-6)


class Estimate:
    def __init__(self, program, model, job):
        self.command = [program, "estimate", model, "--per_device_train_batch_size", str(job["batch"]), "--max_seq_length",
                        str(job["length"]), "--ranks_per_host", "1"]

    def print(self, hosts, link, latency, **rates):
        command = [*self.command, "--hosts", str(hosts), "--link", f"{link:.6g}B/s", "--latency", f"{latency:.6g}s"]
        for flag, value in rates.items():
            command += [f"--{flag}", value]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @staticmethod
    def seconds(text, hosts):
        table = text[text.index("A step, and the peak of a rank: all weights"):]
        row = next(line for line in table.splitlines() if re.match(rf"│ *{hosts} *│", line))
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        found = {}
        for strategy, column in COLUMNS.items():
            number, unit = cells[column].split(",")[0].split()
            found[strategy] = float(number) * UNITS[unit]
        return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("hosts", type=int, nargs="+")
    parser.add_argument("--rates", nargs="+", default=["1gbit"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build/release"))
    parser.add_argument("--out")
    o = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # namespaces go
    tessera, bench = f"{o.build}/tessera", f"{o.build}/bench/train_bench"
    with tempfile.TemporaryDirectory() as work:
        os.makedirs(f"{work}/shape")
        config = json.load(open(f"{HERE}/llama_20m/config.json"))
        json.dump({**config, **SHAPE}, open(f"{work}/shape/config.json", "w"))
        model = f"{work}/model"
        subprocess.run([tessera, "init-model", f"{work}/shape", model], check=True, stdout=subprocess.DEVNULL)
        estimate = Estimate(tessera, model, dict(batch=o.batch, length=o.length))
        train = [bench, "--model", model, "--length", str(o.length), "--batch", str(o.batch), "--steps", str(o.steps)]
        for hosts in o.hosts:
            rank = None
            for rate in o.rates:
                network = Hosts(hosts, rate)
                try:
                    if rank is None:
                        alone = f"{work}/alone_{hosts}_"
                        network.run([*train, "--strategy", "NO_SHARD", "--out", alone + "{host}"], together=False)
                        seconds = statistics.mean(step_seconds(f"{alone}{h}") for h in range(hosts))
                        text = estimate.print(1, 1e9, 1e-6, flops_per_rank="1000PFLOP/s")
                        memory = re.search(r"and (\S+) (\S+) of memory", text)
                        memory = memory[1] + memory[2]
                        passes = Estimate.seconds(text, 1)["FULL_SHARD"]
                        flop = re.search(r"a rank computes (\S+) (\w)FLOP", text)
                        flops = float(flop[1]) * {"G": 1e9, "T": 1e12}[flop[2]] / (seconds - passes)
                        rank = dict(flops_per_rank=f"{flops:.6g}FLOP/s", memory_rate_per_rank=memory)
                    link, latency = link_curve(network, f"{o.build}/bench/comm_bench")
                    predicted = Estimate.seconds(estimate.print(hosts, link, latency, **rank), hosts)
                    for strategy in STRATEGIES:
                        out = f"{work}/{hosts}_{rate}_{strategy}"
                        network.run([*train, "--strategy", strategy, "--out", out])
                        measured = step_seconds(out)
                        row = dict(hosts=hosts, rate=rate, strategy=strategy, computation=round(seconds, 3),
                                   link_mb=round(link / 1e6, 1), latency_us=round(latency * 1e6),
                                   gflops=round(flops / 1e9, 1), memory=memory, predicted=round(predicted[strategy], 3),
                                   measured=round(measured, 3), of_measured=round(predicted[strategy] / measured, 3))
                        print(json.dumps(row), flush=True)
                        if o.out:
                            open(o.out, "a").write(json.dumps(row) + "\n")
                finally:
                    network.close()


if __name__ == "__main__":
    main()
