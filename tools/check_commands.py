#!/usr/bin/env python3
"""Runs the commands of README.md and docs/ on tiny models; prints each that fails, with file and line, and exits 1.

A line of a code block that starts `tessera` is run as it stands, in a folder of its document's own, after those above it: what
it names that is not there (a model, data, a config file) comes from FIXTURES, and a training stops after two steps. What cannot
run here, and why, stands in PARSED; it and commands inside a sentence are given to the option tables of the program with a flag
that there is not, which must be the only problem that they find. Flags in sentences must be in the table of some command.

    tools/check_commands.py TESSERA_PROGRAM [DOCUMENT...]
"""

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Only parsed, and why.
PARSED = {
    r"\.\.\.": "a part is left out",
    r"^\S*torchrun": "torchrun starts it, on several machines",
    r"--num_machines(?!.*127\.0\.0\.1)": "several machines",
    r"--device cuda": "needs a GPU",
    r"bench/e2e/": "measures for minutes",
    r"--do_predict": "needs a classifier that was trained before",
    r"generate --model chat\.gguf": "the tiny model's tokenizer has no merges, which the format wants",
}
# Forms, not commands.
FORMS = re.compile(r"\[flags\]|^tessera (?:TASK|COMMAND)\b")
# What stands in sentences for a number or a name that the reader has.
PLACEHOLDERS = {"N": "2", "$WORLD_SIZE": "2", "$RANK": "0", "$MASTER_ADDR": "127.0.0.1", "$MASTER_PORT": "29500", "TASK": "sft"}

# Models of random weights, by what they are made of, and the names that documents have for such.
MODELS = {
    "tests/data/tiny_chat": "SmolLM2-135M-Instruct HuggingFaceTB/SmolLM2-135M-Instruct BASE MODEL big-model meta-llama/Llama-2-70b-hf Llama-2-70b-hf "
    "Llama-3.1-405B org/name org/name@v1.0",
    "examples/demo/model": "t5-base",
    "tests/data/goldens/A_models/bert_mlm": "bert-base-uncased",
}
# Other names: the files and folders of the project that are copied there. make_fixtures() makes what there is not.
FIXTURES = {
    "data": "tests/data/tiny_chat",
    "wikihow": "tests/data/wikihow",
    "org/chats": "tests/data/tiny_chat",
    "examples/demo/chats": "examples/demo/chats",
    "fsdp_config.yaml": "examples/demo/fsdp_config.yaml",
    "fsdp_config_qlora.yaml": "examples/demo/fsdp_config.yaml",
    "OLD": "examples/demo/fsdp_config.yaml",
    "tests/data/tiny_chat": "tests/data/tiny_chat",
    "tests/data/goldens/A_models/gpt2": "tests/data/goldens/A_models/gpt2",
    "build/my_program": "/bin/true",
}
TEXTS = {
    "rows.jsonl": '{"prompt": "a", "adapter": "math"}\n{"prompt": "b"}\n',
    "questions.jsonl": '{"messages": [{"role": "user", "content": "a"}]}\n',
    "reviews/train.jsonl": '{"text": "good", "label": "yes"}\n{"text": "bad", "label": "no"}\n' * 4,
    "reviews/val.jsonl": '{"text": "so", "label": "yes"}\n',
    "mrpc/train.jsonl": '{"sentence1": "a", "sentence2": "b", "label": 1}\n{"sentence1": "a", "sentence2": "c", "label": 0}\n' * 4,
    "mrpc/validation.jsonl": '{"sentence1": "a", "sentence2": "b", "label": 1}\n',
    "articles/train.jsonl": '{"document": "a long text", "summary": "short"}\n' * 8,
    "articles/val.jsonl": '{"document": "another", "summary": "one"}\n' * 2,
    "pairs/train.jsonl": '{"text": "a", "target": "b"}\n' * 8,
    "pairs.jsonl": '{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 8,
    "adapters.yaml": "math: {lora_r: 2, dataset_name: data}\ncode: {lora_r: 2, learning_rate: 1.0e-3, dataset_name: data}\n",
    "sft.yaml": "model_name_or_path: BASE\ndataset_name: data\noutput_dir: out\n",
}
TRAINING = {"sft", "seq2seq", "classify", "summarize", "dpo", "orpo", "cpo", "kto", "reward"}
# Given to a training behind its own flags.
SHORT = "--max_steps 2 --print_model false"
SENTINEL = "--flag_that_there_is_not"

COMMAND = re.compile(r"^mkdir -p |^(?:[A-Z_]+=\S* )*(?:\S*/)?tessera\s|^(?:printf|echo) .*\| *(?:\S*/)?tessera\s|^for .*\btessera\s|^\S*torchrun .*\btessera\s")
FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
# Flags of other programs.
FOREIGN = {
    "vLLM, llama.cpp, docker": "--enable-lora --lora-modules --max-lora-rank --jinja --lora --pooling --shm-size --ipc",
    "sbatch, srun, mpirun, torchrun, scripts of the project": "--signal --requeue --open-mode --distribution --kill-on-bad-exit --mpi --map-by --gpus-per-task --gpu-bind --ntasks --no_python --test",
    "those of bench/": "--only --rounds --width --rows --device_ms --precision --no_peer --memory --offload_params",
}


class Document:
    """Its commands: (line, text, is in a sentence); the flags that sentences name: (line, flag); files, `# file: NAME` on top."""

    def __init__(self, path: Path, root: Path = ROOT):
        self.path, self.name = path, str(path.relative_to(root))
        self.commands, self.flags, self.files = [], [], {}
        sentences, fenced, lines = [], False, path.read_text().split("\n")
        at = 0
        while at < len(lines):
            line, first = lines[at], at + 1
            if line.lstrip().startswith("```"):
                fenced = not fenced
                if fenced and (name := re.match(r"# file: (\S+)$", lines[first])):
                    self.files[name.group(1)] = "\n".join(lines[first : lines.index("```", first)]) + "\n"
            elif fenced or line.startswith("    "):
                text = line if fenced else line[4:]
                while text.endswith("\\") and at + 1 < len(lines):
                    at += 1
                    text = text[:-1] + lines[at].strip()
                text = re.sub(r"\s+#\s.*$", "", text)
                if COMMAND.match(text):
                    self.commands.append((first, text, False))
            else:
                sentences.append((first, line))
            at += 1
        self.read_sentences(sentences)

    def read_sentences(self, sentences):
        text = "\n".join(line for _, line in sentences)
        starts = [0]
        for _, line in sentences:
            starts.append(starts[-1] + len(line) + 1)
        for span in re.finditer(r"`([^`]+)`", text):
            number = next(n for n, end in zip((s[0] for s in sentences), starts[1:]) if span.start() < end)
            code = " ".join(span.group(1).split())
            if re.match(r"(?:\S*/)?tessera [a-z]", code) and not code.endswith(":"):
                self.commands.append((number, code, True))
            elif code.startswith("--"):
                self.flags += [(number, flag) for flag in FLAG.findall(code)]


class Program:
    def __init__(self, path: str):
        self.path = str(Path(path).resolve())
        text = self.output(["--help"])
        self.commands = re.findall(r"^  ([a-z][a-z0-9-]*)  ", text.split("Commands\n")[1], re.MULTILINE)

    def output(self, words):
        return subprocess.run([self.path, *words], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout

    def flags(self):
        """Every flag of every command, what all of them have beside their tables, and the keys of PEFT's methods, which are flags, too."""
        found = {"help", "config", *re.findall(r'"([a-z_]+)"', "".join(path.read_text() for path in ROOT.glob("src/peft/methods/*.cc")))}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            tables = pool.map(lambda command: json.loads(self.output([*command.split(), "--help=json"])), [*self.commands, "config update", "config default"])
            for table in tables:
                found |= {plain(name) for option in table["options"] for name in option["names"]}
        return found

    def problems(self, words, whole, place):
        """What the option tables find wrong with a command's words. Not whole: what is required may be lacking. place: folder and environment."""
        if any(word in ("--help", "--help=json", "-h") for word in words):
            words, whole = [word for word in words if not word.startswith(("-h", "--help"))], False
        if not words or words[0] not in self.commands:
            return [f"there is no command '{words[0]}'"] if words else []
        if words[0] == "launch":
            task = next((i for i in range(1, len(words)) if words[i] in self.commands), len(words))
            return self.parsed(words[:task], whole, place) + self.problems(words[task:], whole, place)
        return self.parsed(words, whole, place)

    def parsed(self, words, whole, place):
        if len(words) == 1 and not whole:
            return []
        run = subprocess.run([self.path, *words, SENTINEL + "=1"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **place)
        said = run.stderr
        lines = said.split("\n")[1:-2] if "problems with the command line:" in said else [said.removeprefix("tessera error: ")]
        lines = [line.strip() for line in lines]
        if not any(SENTINEL in line for line in lines):
            return [f"its flags were not read: exit code {run.returncode}, {said.strip()[:300]}"]
        lacking = re.compile(r" is required|^give exactly one")
        return [line for line in lines if SENTINEL not in line and (whole or not lacking.search(line))]


def plain(flag):
    return flag.lstrip("-").replace("-", "_")


def words_of(text):
    """Of a command in a sentence or one that is only parsed: its words, without what is left out and redirections."""
    behind = re.search(r"(?:^|\s)(?:\S*/)?tessera\s+(.*)", text).group(1)
    behind = re.sub(r"\s*(?:[>|;]|&&).*$", "", behind)
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(behind) if word != "..."]


class Runner:
    """Runs the commands of one document in a folder of its own."""

    def __init__(self, program: Program, fixtures: Path, folder: Path):
        self.program, self.fixtures, self.folder = program, fixtures, folder
        tools = folder / "build" / "release"
        tools.mkdir(parents=True)
        (folder / "PREFIX").mkdir()
        (folder / "PREFIX" / "bin").symlink_to(tools)
        shim = tools / "tessera"  # the program, which ends a training after two steps
        shim.write_text(
            f'#!/bin/bash\nfor word in "$@"; do case $word in {"|".join(sorted(TRAINING))}) exec {shlex.quote(program.path)} "$@" {SHORT} ;; esac; done\n'
            f'exec {shlex.quote(program.path)} "$@"\n'
        )
        shim.chmod(0o755)
        home = folder / "home"
        for made in (".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions", ".local/share/man/man1"):
            (home / made).mkdir(parents=True)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TESSERA_", "ACCELERATE_"))},
            "HOME": str(home),
            "HF_HOME": str(home / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{tools}:{os.environ['PATH']}",
        }

    @property
    def place(self):
        return {"cwd": self.folder, "env": self.environment}

    def bring(self, text):
        """The fixtures that a command names and nothing above it wrote."""
        made = "--config_file|" if text.startswith("tessera config ") else ""
        written = re.findall(rf"(?:{made}--output_dir|--output|--output_file|>)\s*(\S+)", text)
        words = {part.rstrip("/") or "." for word in shlex.split(text) for part in (word, word.split("=")[-1])}
        for fixture in sorted(self.fixtures.rglob("*.fixture"), key=str):
            name = str(fixture.relative_to(self.fixtures)).removesuffix(".fixture")
            target = self.folder / name
            named = any(word == name or word.startswith(name + "/") for word in words)
            if not named or target.exists() or name in written:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(fixture, target) if fixture.is_dir() else shutil.copy(fixture, target)

    def run(self, text):
        self.bring(text)
        try:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", text], **self.place, input="\n" * 60, capture_output=True, text=True, timeout=100
            )
        except subprocess.TimeoutExpired:
            return "took more than 100 s"
        return "" if done.returncode == 0 else f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-700:]}"


def make_fixtures(program: Program, folder: Path):
    made = folder.parent / "made"
    made.mkdir()

    def add(name, sources):
        target = folder / (name + ".fixture")
        target.parent.mkdir(parents=True, exist_ok=True)
        for source in sources:
            shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target)

    def call(*words):
        done = subprocess.run([program.path, *words], capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(made)})
        if done.returncode:
            sys.exit(f"check_commands: a fixture was not made: {done.stderr}")

    for source, names in MODELS.items():
        model, config = made / Path(source).name, ROOT / source
        if not any((config / name).exists() for name in ("tokenizer.json", "spiece.model")):
            config = made / (model.name + " with a tokenizer")
            config.mkdir()
            (config / "config.json").write_text(json.dumps({**json.loads((ROOT / source / "config.json").read_text()), "vocab_size": 512, "max_position_embeddings": 512}))
            for file in ROOT.glob("tests/data/tiny_chat/tokenizer*.json"):
                shutil.copy(file, config)
        call("init-model", str(config), str(model))
        for name in names.split():
            add(name, [model])
    for name, sources in FIXTURES.items():
        add(name, [ROOT / source for source in sources.split()])
    for name, text in TEXTS.items():
        file = made / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for top in (made / "texts").iterdir():
        add(top.name, [top])
    data, out = ROOT / "tests/data/tiny_chat", made / "out"
    call(
        *f"sft --model_name_or_path {made / 'tiny_chat'} --dataset_name {data} --use_peft_lora true --lora_r 4 --dataset_cache_dir {made / 'cache'}".split(),
        *f"--save_strategy steps --save_steps 1 --logging_steps 1 --output_dir {out} {SHORT}".split(),
    )
    for name in ("out", "out/lora", "out/dora", "out/math", "out/code"):
        add(name, [out])
    for name in ("out/checkpoint-100", "out/run/checkpoint-40"):
        add(name, [out / "checkpoint-2"])


def check(program: Program, documents):
    """Problems, and how many commands were run and parsed."""
    known = program.flags() | {plain(flag) for flags in FOREIGN.values() for flag in flags.split()}
    with tempfile.TemporaryDirectory() as scratch:
        fixtures = Path(scratch) / "fixtures"
        fixtures.mkdir()
        make_fixtures(program, fixtures)

        def of_document(document):
            problems, counts = [], [0, 0]
            runner = Runner(program, fixtures, Path(scratch) / document.name.replace("/", "_"))
            for name, text in document.files.items():
                (runner.folder / name).write_text(text)
                runner.bring(" ".join(line.partition(": ")[2] for line in text.splitlines()))
            for number, text, in_sentence in document.commands:
                where = f"{document.name}:{number}: '{text}'"
                if FORMS.search(text):
                    continue
                if in_sentence or any(re.search(part, text) for part in PARSED):
                    runner.bring(text)
                    counts[1] += 1
                    found = program.problems(words_of(text), not in_sentence and "..." not in text, runner.place)
                    problems += [f"{where}: {problem}" for problem in found]
                else:
                    counts[0] += 1
                    failure = runner.run(text)
                    problems += [f"{where}: {failure}"] if failure else []
            for number, flag in document.flags:
                name = plain(flag)
                if name not in known and name.removeprefix("no_") not in known:
                    problems.append(f"{document.name}:{number}: no command has the flag {flag}")
            return problems, counts

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(of_document, documents))
    return [problem for problems, _ in results for problem in problems], [sum(counts[i] for _, counts in results) for i in (0, 1)]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program = Program(sys.argv[1])
    paths = [Path(name).resolve() for name in sys.argv[2:]] or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    problems, (ran, parsed) = check(program, [Document(path) for path in paths])
    print("\n".join(problems))
    print(f"{ran} commands were run, {parsed} only parsed, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
