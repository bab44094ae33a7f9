#!/usr/bin/env python3
"""Deletes each wait and each event's record of the code that uses several streams, one at a time, builds, and runs the tests
that must fail then; prints those that no test misses and exits 1 when there is one. The source is put back in any case.

    tools/delete_waits.py [BUILD_FOLDER]      # build/release; a quarter of an hour
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "src/comm/device/nccl_engine.cc"
STREAM = "src/tensor/copy_stream.cc"
HOST_COPY = "src/tensor/host_copy.cc"
UPLOADER = "src/tensor/uploader.cc"
COPY = "src/fsdp/params/device_copy.cc"
UNIT = "src/fsdp/runtime/unit.cc"
RUNTIME = "src/fsdp/runtime/runtime.cc"
STEP = "src/fsdp/runtime/background_step.cc"
BUCKET = "src/fsdp/grads/gradient_bucket.cc"
REDUCER = "src/fsdp/grads/gradient_reducer.cc"
NCCL = [["test_unit_fsdp", "--gtest_filter=*Resident*Nccl*:*DeviceGroup*:Nccl*"]]
COPIES = [["test_unit_tensor", "--gtest_filter=Uploader*"], ["test_unit_fsdp", "--gtest_filter=Device.*:DeviceCopies.*:GradientBucket.*"]]
LATER = [["test_unit_tensor", "--gtest_filter=HostCopy*"]]
STEPS = [["test_unit_fsdp", "--gtest_filter=BackgroundStep*"]]
# (file, the line, what stands before it where there are several, the tests)
WAITS = [
    (STREAM, "  computed.record(computing_stream(device()));\n", "", COPIES),
    (STREAM, "  computed.block(stream_);\n", "", COPIES),
    (STREAM, "  done.record(stream_);\n", "", COPIES),
    (HOST_COPY, "  done_->record(c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device()));\n", "", LATER),
    (HOST_COPY, "  if (done_) done_->synchronize();\n", "", LATER),
    (UPLOADER, "  stream_.wait_for_computation();\n", "", COPIES),
    (UPLOADER, "        if (free[turn]) free[turn]->synchronize();\n", "", COPIES),
    (UPLOADER, "        free[turn] = stream_.mark();\n", "", COPIES),
    (UPLOADER, "    stream_.mark().synchronize();  // nobody reads the pieces any more\n", "", COPIES),
    (UPLOADER, "  batch.changed.wait(lock, [&] { return batch.parts == 0; });\n", "", COPIES),
    (UPLOADER, "  stream_.block_computation(*batch.done);\n", "", COPIES),
    (COPY, "    finish();\n", "", COPIES),
    (COPY, "    uploader_.settle();\n", "", COPIES),
    (UNIT, "    copy_->finish();\n", "", COPIES),
    (RUNTIME, "  device.synchronizeStream(device.getStream(options_.device));\n", "", COPIES),
    (UNIT, "  if (auto* step = runtime_.background_step()) step->wait_for(*this);\n", "void Unit::gather() {\n", STEPS),
    (UNIT, "  if (auto* step = runtime_.background_step()) step->wait_for(*this);\n", "  if (!pinned_) return;\n", STEPS),
    (RUNTIME, "  finish_step();  // gradients come again\n", "", STEPS),
    (RUNTIME, "  if (background_step_ && !background_step_->has_updated(*units_[static_cast<std::size_t>(*unit)])) return;\n", "", STEPS),
    (STEP, "      if (fences_) fences_->barrier();\n", "", STEPS),
    (STEP, "  changed_.wait(lock, [&] { return ended_; });\n", "", STEPS),
    (BUCKET, "  to_host_->wait_for_computation();\n", "", COPIES),
    (BUCKET, "  leaving_.push_back({to_host_->mark(), std::move(sent)});\n", "", COPIES),
    (BUCKET, "  if (!leaving_.empty()) leaving_.back().done.synchronize();\n", "", COPIES),
    (BUCKET, "    land();\n", "  if (state_of_entry.written) {\n", COPIES),
    (BUCKET, "    land();\n", "  try {\n", COPIES),
    (REDUCER, "  b.land();\n", "  b.evict();\n", COPIES),
    (BUCKET, "  land();\n", "  evict();\n", COPIES),
    (REDUCER, "  for (auto& b : buckets_) b.forget();  // before the transport's memory goes, into which copies may be on their way\n", "", COPIES),
    (ENGINE, "    done_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));\n", "", NCCL),
    (ENGINE, "    ready.record(impl.getStream(device_));\n", "", NCCL),
    (ENGINE, "    ready.block(stream_);\n", "", NCCL),
    (ENGINE, "    done.record(stream_);\n", "", NCCL),
]


def build(folder, tests):
    programs = [t[0] for t in tests]
    subprocess.run(["ninja", "-j", str(os.cpu_count()), "-C", str(folder), *programs], check=True, stdout=subprocess.DEVNULL)


def fail(folder, tests):
    for program, *arguments in tests:
        try:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            if subprocess.run([folder / program, *arguments], timeout=120, **quiet).returncode != 0:
                return True
        except subprocess.TimeoutExpired:  # it waits for ever, which somebody notices
            return True
    return False


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
    for tests in (NCCL, COPIES, LATER, STEPS):
        build(folder, tests)
        if fail(folder, tests):
            sys.exit("the tests fail as things are")
    survivors = 0
    for name, line, before, tests in WAITS:
        path = ROOT / name
        text = path.read_text()
        assert text.count(before + line) == 1, f"{name}: expected once: {before + line}"
        try:
            path.write_text(text.replace(before + line, before))
            build(folder, tests)
            noticed = fail(folder, tests)
        finally:
            path.write_text(text)
        survivors += not noticed
        print(f"{'noticed ' if noticed else 'MISSED  '} {name}: {line.strip()}", flush=True)
    build(folder, NCCL + COPIES + LATER + STEPS)
    return 1 if survivors else 0


sys.exit(main())
