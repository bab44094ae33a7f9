#!/usr/bin/env python3
"""Writes targets.json: the layers that PEFT adapts where a configuration names none, for each method and family that both know.

    python3 make_targets.py TESSERA    # peft; TESSERA: the program, which is asked for its families
"""

import json
import pathlib
import re
import subprocess
import sys

from peft.utils import constants

METHODS = {"LORA": "LORA", "IA3": "IA3", "ADALORA": "ADALORA", "BOFT": "BOFT", "OFT": "OFT", "HRA": "HRA", "LOHA": "LOHA", "LOKR": "LOKR",
           "MISS": "MISS", "FOURIERFT": "FOURIERFT", "VERA": "VERA", "VBLORA": "VBLORA", "RANDLORA": "RANDLORA", "LN_TUNING": "LNTUNING",
           "DELORA": "DELORA", "GRALORA": "GRALORA", "C3A": "C3A", "ROAD": "ROAD", "SHIRA": "SHIRA", "WAVEFT": "WAVEFT", "HIRA": "HIRA", "BEFT": "BEFT", "PVERA": "PVERA", "UNILORA": "UNILORA", "PSOFT": "PSOFT"}

folder = pathlib.Path(__file__).parent
unknown = folder / "config.json"
unknown.write_text('{"model_type": "none"}')
said = subprocess.run([sys.argv[1], "estimate", str(folder)], capture_output=True, text=True).stderr
unknown.unlink()
families = re.search(r"is not known \((.*?)\)", said)[1].split(", ")
tables = {method: getattr(constants, f"TRANSFORMERS_MODELS_TO_{name}_TARGET_MODULES_MAPPING") for method, name in METHODS.items()}
rows = {method: {family: sorted(table[family]) for family in families if family in table} for method, table in tables.items()}
text = ",\n".join(f' "{method}": {{\n' + ",\n".join(f'  "{f}": {json.dumps(t)}' for f, t in table.items()) + "\n }" for method, table in rows.items())
(folder / "targets.json").write_text("{\n" + text + "\n}\n")
