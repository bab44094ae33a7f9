#!/usr/bin/env bash
# Runs a program as on a lesser processor: our kernels through TESSERA_CPU_LEVEL, libtorch, oneDNN and MKL through variables of
# theirs.   at_level.sh plain|avx2|avx512|avx512_bf16|amx PROGRAM [ARGUMENTS]
# 77 (skipped) on a processor without that level.
set -euo pipefail
level=$1
shift
case $level in
    plain) needs=sse2 aten=default onednn=SSE41 mkl=SSE4_2 ;;
    avx2) needs=avx2 aten=avx2 onednn=AVX2 mkl=AVX2 ;;
    avx512) needs=avx512vl aten=avx512 onednn=AVX512_CORE mkl=AVX512 ;;
    avx512_bf16) needs=avx512_bf16 aten=avx512 onednn=AVX512_CORE_BF16 mkl=AVX512 ;;
    amx) needs=amx_bf16 aten= onednn= mkl= ;;
    *)
        echo "at_level.sh: expected plain, avx2, avx512, avx512_bf16 or amx, found '$level'"
        exit 1
        ;;
esac
grep -qw "$needs" /proc/cpuinfo || {
    echo "skipped: this processor has no $level"
    exit 77
}
export TESSERA_CPU_LEVEL=$level
[ -z "$aten" ] || export ATEN_CPU_CAPABILITY=$aten ONEDNN_MAX_CPU_ISA=$onednn MKL_ENABLE_INSTRUCTIONS=$mkl
exec "$@"
