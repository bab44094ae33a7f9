"""Writes rows.parquet, rows.arrow (a stream, as save_to_disk() writes), table.arrow and rows.jsonl (the same rows), and one_word.parquet (1500 rows that name one word of 5 MiB), bytes.parquet (texts beside bytes that are none), many_values.parquet, byte_keys.parquet (a map whose keys are bytes), deep.arrow (JSON of 500 levels in a list); run with pyarrow installed."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent
MESSAGE = pa.struct([("role", pa.dictionary(pa.int32(), pa.string())), ("content", pa.string()), ("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.map_(pa.string(), pa.int32()))])))])
SCHEMA = pa.schema([
    ("messages", pa.list_(MESSAGE)), ("id", pa.uint32()), ("score", pa.float32()), ("good", pa.bool_()),
    ("label", pa.dictionary(pa.int8(), pa.large_string())), ("nested", pa.list_(pa.list_(pa.float64(), 2))), ("bytes", pa.large_binary()),
    ("nothing", pa.null()), ("tools", pa.list_(pa.string())), ("big", pa.uint64())])


def rows() -> list[dict]:
    out = []
    for i in range(7):
        messages = [{"role": "user", "content": f"Frage {i}: wie heißt 東京 auf Deutsch?"}, {"role": "assistant", "content": "Tokio" * i}]
        if i % 3 == 1:
            messages.insert(1, {"role": "assistant", "content": None, "tool_calls": [{"name": "look_up", "arguments": {"page": i, "line": -i}}]})
        out.append({"messages": messages, "id": 4_000_000_000 + i, "score": None if i == 2 else i / 4, "good": i % 2 == 0,
                    "label": ["yes", "no"][i % 2], "nested": [[float(i), 0.5]] * (i % 3), "bytes": f"b{i}", "nothing": None,
                    "tools": [None, {"name": "look_up", "strict": None, "x": [1.5, "a"]}][: i % 3], "big": 2**64 - 1 - i})
    return out


def main() -> None:
    table = pa.Table.from_pylist([{**r, "bytes": r["bytes"].encode(), "tools": [t and json.dumps(t) for t in r["tools"]]} for r in rows()], schema=SCHEMA)
    texts = table["tools"].combine_chunks()
    table = table.set_column(SCHEMA.get_field_index("tools"), "tools", pa.ListArray.from_arrays(texts.offsets, pa.ExtensionArray.from_storage(pa.json_(), texts.values)))
    for name, writer in [("rows", pa.ipc.new_stream), ("table", pa.ipc.new_file)]:
        with writer(FOLDER / f"{name}.arrow", table.schema) as f:
            f.write_table(table, max_chunksize=4)
    pq.write_table(table, FOLDER / "rows.parquet", row_group_size=3, compression="zstd")
    with open(FOLDER / "rows.jsonl", "w", encoding="utf-8") as f:
        for row in rows():
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
    word = pa.DictionaryArray.from_arrays(pa.array([0] * 1500, pa.int32()), pa.array(["a" * (5 << 20)]))
    pq.write_table(pa.table({"text": word}), FOLDER / "one_word.parquet", compression="zstd", store_schema=False)
    picture, plain = b"\x89PNG\xff", b"a plain text"
    pq.write_table(pa.table({"text": ["one", "two"], "image": [{"bytes": picture, "path": None}, None], "raw": [plain, picture],
                             "messages": [[{"role": b"user", "content": c}] for c in (plain, picture)]}), FOLDER / "bytes.parquet")
    keys = pa.array([[(plain, 1)], [(picture, 2)]], pa.map_(pa.binary(), pa.int32()))
    pq.write_table(pa.table({"map": keys}), FOLDER / "byte_keys.parquet")
    deep = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[" * 500 + "]" * 500]))
    with pa.ipc.new_stream(FOLDER / "deep.arrow", pa.schema([("x", pa.list_(pa.json_()))])) as f:
        f.write_table(pa.table({"x": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), deep)}))
    many = pa.ListArray.from_arrays(pa.array([0, 2, 5_000_002], pa.int32()), pa.nulls(5_000_002))
    pq.write_table(pa.table({"x": many}), FOLDER / "many_values.parquet", compression="zstd", store_schema=False)


if __name__ == "__main__":
    main()
