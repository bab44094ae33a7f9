#!/usr/bin/env bash
# Causal language models beside torch FSDP1 and FSDP2, in turns, ranks of one thread each: same weights, same rows, same adapter.
#
#   bench/e2e/causal_lm.sh MODEL_FOLDER PEER_PYTHON KIND PRECISION [options of in_turns.py: --rounds 3 --steps 10 --out FILE]
#
# KIND: lora or full; PRECISION: fp32 or bf16. `tessera init-model bench/e2e/llama_120m FOLDER` makes the model that
# docs/benchmarks.md speaks of. PEER_PYTHON is a Python with bench/peers/requirements.txt. SEQ and BATCH: tokens of a row and rows
# of a rank (256, 2). RANKS: how many (2). PEERS: which to run ("fsdp1 fsdp2"; also fsdp2_compile; none: no FSDP, for one rank; empty:
# tessera alone). MORE: options for both sides (--activation_checkpointing). WORK: a folder that keeps the prepared rows and adapter. TESSERA
# names another program than build/release/tessera.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=$1 python=$2 kind=$3 precision=$4
shift 4
tessera=${TESSERA:-$here/../../build/release/tessera}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
peer="$here/../peers/causal_lm.py" batch=${BATCH:-2} seq=${SEQ:-256} more=${MORE:-} ranks=${RANKS:-2}
adapter=
[ "$kind" = lora ] && adapter="--adapter $work/adapter"
[ -e "$work/tokens.safetensors" ] && [ "$kind" = full -o -e "$work/adapter/adapter_config.json" ] ||
  "$python" "$peer" prepare --model "$model" --tokens "$work/tokens.safetensors" --seq "$seq" $adapter
job="--model '$model' --tokens '$work/tokens.safetensors' $adapter --precision $precision --batch $batch --steps {steps} $more --out {metrics}"

runs=(--run "tessera='$tessera' launch --use_cpu --num_processes $ranks --num_cpu_threads_per_process 1 '$(dirname "$tessera")/bench/train_bench' $job")
for api in ${PEERS-fsdp1 fsdp2}; do
  runs+=(--run "$api='$(dirname "$python")/torchrun' --nproc_per_node $ranks '$peer' train --api $api $job")
done
"$here/in_turns.py" "${runs[@]}" --ranks "$ranks" --rows $((ranks * batch)) --rows_tokens "$seq" --check_losses "$([ "$precision" = fp32 ] && echo 1e-5 || echo 2e-2)" "$@"
