#!/usr/bin/env python3
"""Answers accelerate's questionnaire, writes what it writes: NAME.yaml beside NAME.answers, the lines that `tessera config` is
given for the same answers. Also the results of `config update` and `to-fsdp2` for NAME.old.yaml. Needs accelerate (1.15 wrote the
files that are here).

    python3 make.py
"""

import copy
from pathlib import Path

import yaml
from accelerate.commands.config import cluster, config, config_args
from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

HERE = Path(__file__).parent
MACHINE, MACHINES, CHECKED = "Which type", "How many different", "Should distributed"
FSDP, VERSION, STRATEGY, RESHARD = "Do you want to use Fully", "What should be your FSDP version", "What should be your sharding", "Do you want to enable resharding"
OFFLOAD, WRAP, NO_SPLIT, CLASSES, MINIMUM = "Do you want to offload", "What should be your auto wrap", "Do you want to use the model's", "Specify the comma", "What should be your FSDP's minimum"
PREFETCH, STATE, FORWARD, ORIG = "What should be your FSDP's backward", "What should be your FSDP's state", "Do you want to enable FSDP's forward", "Do you want to enable FSDP's `use_orig"
LOADING, SYNC, CHECKPOINTING = "Do you want to enable CPU RAM", "Do you want each individually", "Do you want to enable FSDP activation"
PARALLEL, REPLICATE, SHARD = "Do you want to use the parallelism", "What is the data parallelism", "What is the FSDP shard"
COUNT, PRECISION, IDS, NUMA, CPU_ONLY = "How many ", "Do you wish to use mixed", "What GPU", "Would you like to enable numa", "Do you want to run your training on CPU"
RANK, IP, PORT, NETWORK, RENDEZVOUS = "What is the rank", "What is the IP", "What is the port", "Are all the machines", "What rendezvous"

# In the order of the questions; what tessera does not ask stays at accelerate's proposal.
CASES = {
    "fsdp1": [(MACHINE, "multi-GPU"), (MACHINES, "1"), (CHECKED, "no"), (FSDP, "yes"), (VERSION, "1"), (STRATEGY, "SHARD_GRAD_OP"), (OFFLOAD, "yes"),
              (WRAP, "TRANSFORMER_BASED_WRAP"), (NO_SPLIT, "no"), (CLASSES, "T5Block,BertLayer"), (PREFETCH, "BACKWARD_POST"), (STATE, "SHARDED_STATE_DICT"),
              (FORWARD, "yes"), (ORIG, "no"), (LOADING, "no"), (SYNC, "no"), (CHECKPOINTING, "yes"), (COUNT, "4"), (PRECISION, "bf16")],
    "fsdp1_loading": [(MACHINE, "multi-GPU"), (MACHINES, "1"), (CHECKED, "yes"), (FSDP, "yes"), (VERSION, "1"), (STRATEGY, "FULL_SHARD"), (OFFLOAD, "no"),
                      (WRAP, "SIZE_BASED_WRAP"), (MINIMUM, "2000"), (PREFETCH, "BACKWARD_PRE"), (STATE, "FULL_STATE_DICT"), (FORWARD, "no"), (ORIG, "yes"),
                      (LOADING, "yes"), (CHECKPOINTING, "no"), (COUNT, "2"), (PRECISION, "no")],
    "fsdp2": [(MACHINE, "multi-GPU"), (MACHINES, "2"), (RANK, "1"), (IP, "10.0.0.1"), (PORT, "29501"), (NETWORK, "yes"), (CHECKED, "no"), (FSDP, "yes"),
              (VERSION, "2"), (RESHARD, "no"), (OFFLOAD, "no"), (WRAP, "TRANSFORMER_BASED_WRAP"), (NO_SPLIT, "yes"), (STATE, "FULL_STATE_DICT"), (LOADING, "yes"),
              (CHECKPOINTING, "no"), (PARALLEL, "yes"), (REPLICATE, "2"), (SHARD, "2"), (COUNT, "4"), (PRECISION, "fp16")],
    "cpus": [(MACHINE, "multi-CPU"), (MACHINES, "2"), (RANK, "0"), (IP, "node-a"), (PORT, "29500"), (NETWORK, "no"), (RENDEZVOUS, "c10d"), (CHECKED, "no"),
             (FSDP, "no"), (COUNT, "8"), (PRECISION, "bf16")],
    "gpus": [(MACHINE, "multi-GPU"), (MACHINES, "1"), (CHECKED, "no"), (FSDP, "no"), (COUNT, "2"), (IDS, "0,1"), (NUMA, "yes"), (PRECISION, "no")],
    "one": [(MACHINE, "No distributed training"), (CPU_ONLY, "yes"), (PRECISION, "no")],
}


def questionnaire(answers):
    left = list(answers)

    def take(text):
        for place, (question, answer) in enumerate(left):
            if text.startswith(question):
                del left[place]
                return answer
        return None

    def field(text, convert=None, default=None, error_message=None):
        answer = take(text)
        return default if answer is None else convert(answer) if convert else answer

    def options(text, choices=[], convert=None, default=0):
        answer = take(text)
        place = default if answer is None else [str(c) for c in choices].index(answer)
        return convert(place) if convert else place

    cluster._ask_field, cluster._ask_options, config._ask_options = field, options, options
    result = config.get_user_input()
    left = [(q, a) for q, a in left if not (q == FSDP and a == "no")]  # asked beside accelerate's
    assert not left, left
    return result


for name, answers in CASES.items():
    questionnaire(answers).to_yaml_file(HERE / f"{name}.yaml")
    config_args.load_config_from_file(str(HERE / f"{name}.yaml"))
    (HERE / f"{name}.answers").write_text("".join(answer + "\n" for _, answer in answers))

for old in sorted(HERE.glob("*.old.yaml")):
    name = old.name.removesuffix(".old.yaml")
    loaded = config_args.load_config_from_file(str(old))
    loaded.to_yaml_file(HERE / f"{name}.updated.yaml")
    document = yaml.safe_load(old.read_text())
    if document.get("fsdp_config"):
        with open(HERE / f"{name}.fsdp2.yaml", "w") as out:
            yaml.dump(convert_config_to_fsdp2(copy.deepcopy(document)), out)
