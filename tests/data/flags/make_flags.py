"""Writes the flags of the reference's programs, one a line: sft.txt, dpo.txt, orpo.txt, cpo.txt, kto.txt and reward.txt
(transformers' TrainingArguments, TRL's configuration of that trainer, ModelConfig and ScriptArguments) and launch.txt
(accelerate launch). Reads sources, imports nothing.

    make_flags.py SITE_PACKAGES
"""
import ast
import pathlib
import re
import sys

site = pathlib.Path(sys.argv[1])
here = pathlib.Path(__file__).parent


def fields(path, name):
    tree = ast.parse((site / path).read_text())
    (found,) = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    return [s.target.id for s in found.body if isinstance(s, ast.AnnAssign) and not s.target.id.startswith("_")]


def write(name, versions, flags):
    text = f"# {versions}; written by make_flags.py\n" + "".join(flag + "\n" for flag in flags)
    (here / name).write_text(text)


CONFIGS = {
    "sft": ("trl/trainer/sft_config.py", "SFTConfig"),
    "dpo": ("trl/trainer/dpo_config.py", "DPOConfig"),
    "kto": ("trl/trainer/kto_config.py", "KTOConfig"),
    "reward": ("trl/trainer/reward_config.py", "RewardConfig"),
    "orpo": ("trl/experimental/orpo/orpo_config.py", "ORPOConfig"),
    "cpo": ("trl/experimental/cpo/cpo_config.py", "CPOConfig"),
}
of_all = (
    fields("transformers/training_args.py", "TrainingArguments")
    + fields("trl/trainer/base_config.py", "_BaseConfig")
    + fields("trl/trainer/model_config.py", "ModelConfig")
    + fields("trl/scripts/utils.py", "ScriptArguments")
)
for program, config in CONFIGS.items():
    write(program + ".txt", "transformers 4.57.3, trl 1.16.0", sorted(set(of_all + fields(*config))))
launch = re.findall(r'^ +"--([a-z0-9_]+)",', (site / "accelerate/commands/launch.py").read_text(), re.MULTILINE)
write("launch.txt", "accelerate 1.15.0", sorted(set(launch) - {"positional"}))
