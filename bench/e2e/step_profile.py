"""Where the time of a step goes, from samples of perf (Linux): by the function that a core was in, without any call graph."""

import re
import shutil
import subprocess
from pathlib import Path

# The first class with a match in "symbol (file)" has the sample; code that oneDNN made at run time has no symbol. Products inside attention count as GEMM.
CLASSES = {
    "communication": r"tessera::comm|futex|schedule|finish_task_switch",
    "optimizer": r"tessera::optim",
    "GEMM": r"^\[unknown\] \((\[JIT\]|//anon|.*\.map\))|dnnl::|mkl_|mkldnn|[a-z]gemm|multiply_(tile|panel|pairs)|column_of_tiles|last_tile|pack_(transposed_)?pairs",
    "attention": r"tessera::nn::kernels::(N_\w+::)?(exponentials|largest|softmax|scaled_softmax|score_|make_scores|make_mask|rotate|softcap)|[Cc]ausal_?[Aa]ttention|attend_bf16|narrow_(pairs|row)",
    "allocation": r"\[kernel|[_a-z]*malloc|_int_free|cfree|unlink_chunk|tessera::tensor|c10::.*[Aa]lloc",
    "elementwise": r"tessera::nn::|at::native|at::vec|VectorizedLoop|copy_kernel|memmove|memcpy|memset",
}
NAMES = [*CLASSES, "everything else", "waiting"]
FREQUENCY_HZ = 499


def available() -> bool:
    return bool(shutil.which("perf")) and subprocess.run(["perf", "record", "-k", "CLOCK_REALTIME", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


def recording(samples: Path) -> list[str]:
    """What to put before a command; samples carry Unix time, as the lines of steps do."""
    return ["perf", "record", "-q", "-k", "CLOCK_REALTIME", "-F", str(FREQUENCY_HZ), "-o", str(samples), "--"]


def milliseconds_by_class(samples: Path, begin: float, end: float, steps: int, ranks: int) -> dict[str, float]:
    """Per step and rank, of the steps between two moments. Waiting: for other ranks, or (on a busy machine) for other programs."""
    text = subprocess.run(["perf", "script", "-i", str(samples), "-F", "comm,time,ip,sym,dso"], capture_output=True, text=True, check=True).stdout
    each = 1e3 / FREQUENCY_HZ / steps / ranks
    result = dict.fromkeys(NAMES, 0.0)
    for line in text.splitlines():
        found = re.match(r"\s*(train_bench|tessera\S*)\s+([\d.]+):\s+[0-9a-f]+ (.*)$", line)
        if found and begin <= float(found[2]) <= end:
            result[next((name for name, pattern in CLASSES.items() if re.search(pattern, found[3])), "everything else")] += each
    result["waiting"] = max(0.0, (end - begin) * 1e3 / steps - sum(result.values()))
    return {name: round(value, 1) for name, value in result.items()}
